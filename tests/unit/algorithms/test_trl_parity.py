"""Losses on preferences against TRL's, called on the same log-probabilities through the smallest stub of its trainers.

Skipped without TRL. TRL gives the mean of a batch: its gradient, one number per token of each response, compares pairs.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from burnish.algorithms.pair_losses import PAIR_LOSSES, Pairs, kto, kto_z
from burnish.forward.divergences import divergence

pytest.importorskip("trl", minversion="1.16")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

P, T = 1_000, 3
GATHER = SimpleNamespace(device="cpu", gather=lambda tensor: tensor, gather_for_metrics=lambda tensor: tensor)


def tokens_of(seed: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of 2P responses, chosen first, the reference's sums, and the mask. 1 to 3 tokens each."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.randint(1, T + 1, (2 * P, 1), generator=g)
    policy, reference = (-scale * torch.rand(2, 2 * P, T, generator=g, dtype=torch.float64)).to(dtype) * mask
    return policy.requires_grad_(), reference.sum(1), mask


def trainer_of(**settings: object) -> Any:
    """As much of a trainer as the computation of a loss reads."""
    return SimpleNamespace(
        **{"model": SimpleNamespace(training=True), "accelerator": GATHER, "aux_loss_enabled": False},
        **{"precompute_ref_logps": True, "_metrics": defaultdict(lambda: defaultdict(list))},
        **{"_total_train_tokens": 0, "_tp_size": 1, **settings},
    )


def model_of(policy: Tensor) -> Any:
    nothing = torch.zeros_like(policy)
    outputs = SimpleNamespace(log_probs=policy, entropy=nothing, mean_logits=nothing, is_top1=nothing.bool())
    return lambda **_: outputs


def inputs_of(mask: Tensor) -> dict[str, Tensor]:
    completion = torch.cat((torch.zeros(2 * P, 1), mask), dim=1).long()  # behind one token of a prompt
    return {"input_ids": completion, "attention_mask": completion, "completion_mask": completion}


def dpo(name: str, policy: Tensor, reference: Tensor, mask: Tensor, settings: dict[str, Any]) -> Tensor:
    from trl import DPOTrainer

    stub = trainer_of(
        **{"ld_alpha": None, "use_weighting": False, "loss_types": [name], "loss_weights": [1.0], "beta": 0.1},
        **{"args": SimpleNamespace(discopop_tau=0.05), "f_divergence_type": "reverse_kl", "label_smoothing": 0.0}
        | settings,
    )
    inputs = inputs_of(mask) | {"ref_chosen_logps": reference[:P], "ref_rejected_logps": reference[P:]}
    return DPOTrainer._compute_loss(stub, model_of(policy), inputs, False)


def pairs_of(policy: Tensor, reference: Tensor, mask: Tensor) -> Pairs:
    sums, tokens = policy.sum(1), mask.sum(1)
    return Pairs(sums[:P], sums[P:], reference[:P], reference[P:], tokens[:P], tokens[P:])


def assert_same(ours: Tensor, theirs: Tensor, policy: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    wanted, found = (P * torch.autograd.grad(loss, policy, retain_graph=True)[0] for loss in (theirs, ours))
    trained = policy.detach() != 0  # masked slots are exactly 0
    torch.testing.assert_close(found[trained], wanted[trained], rtol=1e-4, atol=1e-6)


FORWARD, JS = {"f_divergence_type": "forward_kl"}, {"f_divergence_type": "js_divergence"}
SMOOTH = {"label_smoothing": 0.1}
DPO: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {}, {}) for name in ("sigmoid", "hinge", "nca_pair", "apo_zero", "apo_down", "sppo_hard", "discopop")),
    *((name, SMOOTH, SMOOTH) for name in ("robust", "exo_pair", "aot", "aot_unpaired")),
    *((name, FORWARD, {"divergence": "forward_kl"}) for name in ("sigmoid", "hinge")),
    ("robust", JS | SMOOTH, {"divergence": "js", **SMOOTH}),
]
OVERFLOWS = ("discopop", "forward_kl")
"""Losses and divergences whose `exp` is not finite in TRL far from the reference."""


@pytest.mark.parametrize("scale", [1.0, 10.0, 1e4])
@pytest.mark.parametrize(("name", "theirs", "ours"), DPO)
def test_losses_of_dpo(name: str, theirs: dict[str, Any], ours: dict[str, Any], scale: float) -> None:
    given = tokens_of(1, scale, torch.float64)
    loss, expected = PAIR_LOSSES[name].function(pairs_of(*given), **ours).mean(), dpo(name, *given, theirs)
    if scale > 10 and {name, ours.get("divergence")} & {*OVERFLOWS}:
        assert not expected.isfinite()
        assert loss.isfinite()
    else:
        assert_same(loss, expected, given[0])


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_the_alpha_of_trl_is_one_minus_that_of_the_paper(alpha: float) -> None:
    given = tokens_of(2, 10.0, torch.float32)
    theirs = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 1 - alpha}
    loss = PAIR_LOSSES["sigmoid"].function(pairs_of(*given), divergence="alpha", alpha=alpha).mean()
    assert_same(loss, dpo("sigmoid", *given, theirs), given[0])


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize(("name", "theirs"), [("ipo", "ipo"), ("sigmoid", "sigmoid_norm")])
def test_losses_of_means_over_tokens(name: str, theirs: str, scale: float) -> None:
    given = tokens_of(3, scale, torch.float64)
    assert_same(PAIR_LOSSES[name].function(pairs_of(*given).per_token()).mean(), dpo(theirs, *given, {}), given[0])


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_kto(scale: float, shift: float) -> None:
    """A shift of the mismatched log-ratios makes z positive or leaves it at 0."""
    from trl import KTOTrainer

    policy, reference, mask = tokens_of(5, scale, torch.float64)
    good_B, mismatched_B = torch.arange(2 * P) % 3 == 0, scale * (torch.rand(2 * P).double() - 0.6 + shift)
    stub = trainer_of(
        **{"calculate_KL": True, "loss_type": "kto", "beta": 0.1, "desirable_weight": 2.0, "undesirable_weight": 0.5},
        _compute_kl_logps=lambda *_: mismatched_B,
    )
    batch = {"label": good_B, "ref_logps": reference, "ref_KL_logps": torch.zeros(2 * P)}
    expected = KTOTrainer._compute_loss(stub, model_of(policy), inputs_of(mask) | batch, False)
    ratio_B, z = policy.sum(1) - reference, kto_z(mismatched_B)
    assert_same(kto(ratio_B, good_B, z, desirable_weight=2.0, undesirable_weight=0.5).mean(), expected, policy)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_losses_without_a_reference(scale: float) -> None:
    """TRL adds the likelihood of `cpo` and `orpo` outside of these functions, as a mean over the batch's tokens."""
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    policy, reference, mask = tokens_of(6, scale, torch.float32)
    pairs = pairs_of(policy, reference, mask)
    means = pairs.per_token()
    plain = {"accelerator": GATHER, "alpha": 0.0, "label_smoothing": 0.0}
    cpo = SimpleNamespace(**plain, loss_type="sigmoid", beta=0.1)
    simpo = SimpleNamespace(**plain, loss_type="simpo", beta=2.0, simpo_gamma=1.0)
    for name, options, expected in (
        ("cpo", {"alpha": 0.0}, CPOTrainer.cpo_loss(cpo, pairs.chosen, pairs.rejected)[0]),
        ("simpo", {}, CPOTrainer.cpo_loss(simpo, means.chosen, means.rejected)[0]),
        ("orpo", {}, -means.chosen - ORPOTrainer.odds_ratio_loss(cpo, means.chosen, means.rejected)[0]),
    ):
        assert_same(PAIR_LOSSES[name].function(pairs, **options).mean(), expected.mean(), policy)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("name", "beta"), [("forward_kl", 0), ("reverse_kl", 1), ("jsd", 0.3), ("jsd", 0.9)])
def test_divergences_from_a_teacher(name: str, beta: float, temperature: float) -> None:
    """TRL leaves out the square of the temperature."""
    from trl.experimental.gkd import GKDTrainer

    logits = 4 * torch.randn(2, 50, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    student, teacher = logits[0].requires_grad_(), logits[1]
    wanted = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature, reduction="sum")
    found = divergence(student, teacher, name=name, temperature=temperature, beta=beta or 0.5) / temperature**2
    torch.testing.assert_close(found.sum(), wanted)
    torch.testing.assert_close(*(torch.autograd.grad(loss, student)[0] for loss in (found.sum(), wanted)))
