"""Estimators, policy losses and aggregations against verl's, called on the same numbers. Skipped without verl (0.9)."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from burnish.algorithms import kl, policy_losses, token_losses
from burnish.algorithms.advantages import outcome, returns
from burnish.algorithms.aggregation import aggregate
from burnish.algorithms.masking import whiten
from burnish.algorithms.policy_losses import PolicyLoss

core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl", exc_type=ImportError)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GROUPS, SIZE, T = 40, 5, 7
B = GROUPS * SIZE
IDS = torch.arange(GROUPS).repeat_interleave(SIZE)
COMPARED = {"rtol": 2e-5, "atol": 2e-5}
BOUNDS = {"clip_low": 0.2, "clip_high": 0.3}
DPPO = {**BOUNDS, "ratio_cap": 3.0}


def numbers(seed: int, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """New and old log-probabilities, a score of each response, and the mask of 1 to T tokens."""
    g = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(B, T, generator=g)
    new = (old + scale * torch.randn(B, T, generator=g)).clamp(max=-1e-3).requires_grad_()
    mask = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=g)
    return new, old, torch.randn(B, generator=g), mask


def at_the_end(scores_B: Tensor, mask: Tensor) -> Tensor:
    """Token rewards: the score at the last token of each response."""
    return torch.zeros(mask.shape).scatter(1, mask.sum(1, keepdim=True) - 1, scores_B[:, None])


Outcome = tuple[Callable[[Tensor, Tensor], Tensor], str, dict[str, object]]
OUTCOMES: dict[str, Outcome] = {
    "grpo": (lambda s, m: outcome.grpo(s, IDS), "grpo_outcome", {}),
    "dr_grpo": (lambda s, m: outcome.dr_grpo(s, IDS), "grpo_outcome", {"norm_adv_by_std_in_grpo": False}),
    "rloo": (lambda s, m: outcome.rloo(s, IDS), "rloo_outcome", {}),
    "opo": (lambda s, m: outcome.opo(s, IDS, m.sum(1)), "opo_outcome", {}),
    "passk": (lambda s, m: outcome.passk(s, IDS, normalise=True), "grpo_passk_outcome", {"config": {}}),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_advantages_of_responses(name: str) -> None:
    ours, theirs, options = OUTCOMES[name]
    _, _, scores_B, mask = numbers(0, 0.1)
    wanted, _ = getattr(core, f"compute_{theirs}_advantage")(
        at_the_end(scores_B, mask), mask.float(), np.array(IDS.tolist()), **options
    )
    torch.testing.assert_close(ours(scores_B, mask)[:, None] * mask, wanted, **COMPARED)


def test_advantages_of_tokens() -> None:
    _, values, scores_B, mask = numbers(1, 0.1)
    rewards_BT, filled = at_the_end(scores_B, mask), mask.float()
    advantages, targets = returns.gae(rewards_BT, values * mask, mask, gamma=0.9, lam=0.8)
    wanted, wanted_targets = core.compute_gae_advantage_return(rewards_BT, values * mask, filled, 0.9, 0.8)
    torch.testing.assert_close(whiten(advantages, mask, unbiased=True), wanted * mask, **COMPARED)
    torch.testing.assert_close(targets * mask, wanted_targets * mask, **COMPARED)
    to_go, _ = returns.reinforce_plus_plus(rewards_BT, mask, gamma=0.9)
    gamma = SimpleNamespace(gamma=0.9)
    wanted, _ = core.compute_reinforce_plus_plus_outcome_advantage(rewards_BT, filled, config=gamma)
    torch.testing.assert_close(whiten(to_go, mask, unbiased=True), wanted, **COMPARED)


Loss = tuple[Callable[..., PolicyLoss], dict[str, object], str, dict[str, object]]
LOSSES: dict[str, Loss] = {
    "ppo_clip": (policy_losses.ppo_clip, {**BOUNDS, "dual_clip": 3.0}, "vanilla", {}),
    "gspo": (policy_losses.gspo, BOUNDS, "gspo", {}),
    "gmpo": (policy_losses.gmpo, BOUNDS, "geo_mean", {}),
    "sapo": (policy_losses.sapo, {"tau_positive": 1.0, "tau_negative": 1.05}, "sapo", {}),
    "cispo": (policy_losses.cispo, {"clip_low": 0.2, "ratio_cap": 1.3}, "cispo", {}),
    "kimi": (policy_losses.kimi, {"tau": 0.7}, "dro", {"dro_beta": 0.7}),
    "reinforce": (policy_losses.reinforce, {}, "gpg", {}),
    "dppo tv": (policy_losses.dppo, {**DPPO, "divergence": "tv"}, "dppo_tv", {}),
    "dppo kl": (policy_losses.dppo, {**DPPO, "divergence": "kl"}, "dppo_kl", {}),
    "kl_cov": (policy_losses.kl_cov, {"fraction": 0.02}, "kl_cov", {"kl_cov_ratio": 0.02, "ppo_kl_coef": 1.0}),
}


@pytest.mark.parametrize("scale", [0.1, 1.0])
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name: str, scale: float) -> None:
    """Value and gradient. verl aggregates `gspo`, `gmpo` and `sapo` by responses."""
    from verl.workers.config import ActorConfig, PolicyLossConfig

    ours, options, theirs, settings = LOSSES[name]
    new, old, scores_B, mask = numbers(2, scale)
    advantages = scores_B[:, None].expand(B, T)
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 1, "use_dynamic_bsz": True, "clip_ratio_c": 3.0},
        **{"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "policy_loss": PolicyLossConfig(**settings)},
    )
    by_response = name in ("gspo", "gmpo", "sapo")
    modes = ("seq-mean-token-mean", "sequence_mean_token_mean") if by_response else ("token-mean", "token_mean")
    wanted, _ = core.get_policy_loss_fn(theirs)(old, new, advantages, mask.float(), modes[0], config)
    found = aggregate(ours(new, old, advantages, mask, **options).per_token_BT, mask, modes[1])
    torch.testing.assert_close(found, wanted, **COMPARED)
    gradients = (B * torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (found, wanted))
    torch.testing.assert_close(*gradients, **COMPARED)


def test_aggregations_values_and_divergences() -> None:
    new, old, _, mask = numbers(3, 1.0)
    for mode, theirs in (
        ("token_mean", "token-mean"),
        ("sequence_mean_token_mean", "seq-mean-token-mean"),
        ("sequence_mean_token_sum", "seq-mean-token-sum"),
        ("sequence_mean_token_sum_norm", "seq-mean-token-sum-norm"),
    ):
        torch.testing.assert_close(aggregate(new, mask, mode, length=T), core.agg_loss(new, mask.float(), theirs))
    targets = old.roll(1)
    errors = token_losses.clipped_value(new, old, targets, clip=0.2)
    wanted, _ = core.compute_value_loss(new, targets, old, mask.float(), 0.2, "token-mean")
    torch.testing.assert_close(aggregate(errors, mask, "token_mean"), wanted)
    for name in ("k1", "k2", "k3"):  # verl's k3 ends at 10
        torch.testing.assert_close(getattr(kl, name)(new, old).clamp(max=10), core.kl_penalty_forward(new, old, name))
