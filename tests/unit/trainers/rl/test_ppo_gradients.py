"""The gradient of PPO does not depend on how a minibatch is cut, nor on what stands in masked slots, and with a shared
trunk it is a sum."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from plain_samples import ones_batch
from torch import Tensor

from burnish.algorithms.advantages.returns import gae
from burnish.algorithms.policy_losses.clipped import ppo_clip
from burnish.forward.batch import Batch
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.policy import LocalPolicy
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import ActorCriticObjective, ClippedValueObjective, PolicyObjective
from burnish.trainers.telemetry.moments import derive_values, describe_values

SETTINGS = OptimizerSettings(1e-2, 10)
AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum_norm", "turn_mean_token_mean")


def build(load: Any, kind: str, budget: int) -> tuple[LocalPolicy, SeparateCritic | SharedCritic]:
    loaded = load(plain=True)
    separate = SeparateCritic.copy_of(loaded, SETTINGS, tokens_per_microbatch=budget) if kind == "separate" else None
    policy = LocalPolicy(loaded, SETTINGS, temperature=0.7, tokens_per_microbatch=budget)
    critic = separate or policy.add_value_head(SETTINGS)
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, 16)[None])  # a head of zeros sends no gradient into its trunk
    return policy, critic


def ppo_batch(batch: Batch, policy: LocalPolicy, critic: SeparateCritic | SharedCritic) -> Batch:
    """Seven rows of all lengths with a masked span and two turns; old scores a little off the present ones, and NaN in
    slots that are not trained on."""
    generator = torch.Generator().manual_seed(0)

    def near(tensor: Tensor) -> Tensor:
        return tensor + 0.2 * torch.randn(7, 9, generator=generator)

    values = near(critic.values(batch))
    advantages, returns = gae(torch.randn(7, 9, generator=generator), values, batch.loss_mask)
    logprobs = policy.logprobs(batch).logprobs_BT
    turns = torch.where(batch.loss_mask, (torch.arange(9) > 2).long(), -1)
    numbers = {"values": values, "advantages": advantages, "returns": returns}
    numbers |= {"old_logprobs": near(logprobs), "ref_logprobs": near(logprobs)}
    trained = {name: torch.where(batch.loss_mask, each, torch.nan) for name, each in numbers.items()}
    return batch.replace(turn_index=turns, **trained)


@pytest.fixture
def gradients(load, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Gradients of both models in one update, caught before the step, and the metrics."""
    return partial(find_gradients, load, batch, monkeypatch)


def find_gradients(load: Any, batch: Batch, monkeypatch: Any, kind: str, budget: int, aggregation: str) -> Any:
    caught: list[dict[str, Tensor]] = []

    def keep(self: WeightOptimizer, step: int, grad_norm: Tensor) -> float:
        caught.append({n: p.grad.clone() for n, p in self._parameters.items() if p.grad is not None})
        return 0.0

    monkeypatch.setattr(WeightOptimizer, "step", keep)
    policy, critic = build(load, kind, budget)
    batch = ppo_batch(batch, policy, critic)
    clips = {"clip_low": 0.2, "clip_high": 0.2}
    loss = PolicyObjective(ppo_clip, clips, aggregation, 9, kl_coef=0.1, entropy_coef=0.01)
    value_loss = ClippedValueObjective(0.2, aggregation, 9)
    store = MetricStore()
    if kind == "separate":
        store.merge(policy.update(batch, loss).metrics)
        store.merge(critic.update(batch, value_loss).metrics)
    else:
        store.merge(policy.update(batch, ActorCriticObjective(loss, value_loss, 0.5)).metrics)
    return caught, store.row()


@pytest.mark.slow_cases("separate-*_mean*")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_cutting_a_minibatch_changes_no_gradient(kind: str, aggregation: str, gradients) -> None:
    whole, row = gradients(kind, 10_000, aggregation)
    assert len(whole) == 2  # policy and critic (or head) step with optimizers of their own
    assert 0 < row["critic/clip_fraction"] < 1
    assert 0 < row["policy/clip_fraction"] < 1
    for budget in (30, 1):
        cut, cut_row = gradients(kind, budget, aggregation)
        torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)
        for name in ("policy/loss", "critic/loss", "critic/clip_fraction", "critic/error_mean"):
            assert cut_row[name] == pytest.approx(row[name], abs=1e-5)


def test_a_shared_gradient_is_the_sum_of_both_losses(gradients) -> None:
    """Policy's trunk: gradient of the policy loss + coef x that of the value loss, both known from separate models."""
    (trunk, head), _ = gradients("shared", 10_000, "token_mean")
    (policy, critic), _ = gradients("separate", 10_000, "token_mean")
    torch.testing.assert_close(head["weight"], 0.5 * critic["head.weight"], atol=1e-6, rtol=1e-5)
    for name, gradient in trunk.items():
        value_gradient = critic.get(f"trunk.{name.removeprefix('model.')}", torch.zeros(()))
        torch.testing.assert_close(gradient, policy[name] + 0.5 * value_gradient, atol=1e-6, rtol=1e-4)


def test_explained_variance_by_hand() -> None:
    """Returns 1, 2, 3 with variance 2/3; residuals 1, 0, 2 (mean 1) with variance 2/3; then residuals all 1."""
    batch = ones_batch(torch.ones(1, 3, dtype=torch.bool), returns=torch.tensor([[1.0, 2.0, 3.0]]))
    for values, explained in (([0.0, 2.0, 1.0], 0.0), ([0.0, 1.0, 2.0], 1.0), ([2.0, 2.0, 2.0], 0.0)):
        row = derive_values(MetricStore.of([describe_values(batch.replace(values=torch.tensor([values])))]).row())
        assert row["critic/explained_variance"] == pytest.approx(explained, abs=1e-6)
        assert row["critic/return_std"] == pytest.approx((2 / 3) ** 0.5)
        assert row.keys() == {
            "critic/value_mean", "critic/return_mean", "critic/return_std", "critic/explained_variance"
        }  # fmt: skip
    constant = batch.replace(values=batch.returns, returns=torch.ones(1, 3))
    row = MetricStore.of([describe_values(constant)]).row()
    assert "critic/explained_variance" not in derive_values(row)
