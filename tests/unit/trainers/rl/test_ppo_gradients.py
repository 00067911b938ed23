"""The gradient of PPO does not depend on how a minibatch is cut, and masked slots do not exist for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from burnish.algorithms.advantages.returns import gae
from burnish.algorithms.policy_losses.clipped import ppo_clip
from burnish.forward.batch import Batch
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.policy import LocalPolicy
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import ActorCriticObjective, ClippedValueObjective, PolicyObjective
from burnish.trainers.telemetry.moments import derive_values, describe_values

SETTINGS = OptimizerSettings(1e-2, 10)
AGGREGATIONS = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum_norm", "turn_mean_token_mean")


def build(kind: str, budget: int) -> tuple[LocalPolicy, SeparateCritic | SharedCritic]:
    tokenizer = character_tokenizer("0123456789,:", bos="S", eos="E", pad="P", unk="U")
    model = tiny_llama(vocab_size=16, hidden_size=16, eos_token_id=1, pad_token_id=2)
    loaded = LoadedModel(model, tokenizer, (1,), 2, 128)
    critic: SeparateCritic | SharedCritic
    if kind == "separate":
        critic = SeparateCritic.copy_of(loaded, SETTINGS, tokens_per_microbatch=budget)
    policy = LocalPolicy(loaded, SETTINGS, temperature=0.7, tokens_per_microbatch=budget)
    if kind == "shared":
        critic = policy.add_value_head(SETTINGS)
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, 16)[None])  # a head of zeros sends no gradient into its trunk
    return policy, critic


def ppo_batch(policy: LocalPolicy, critic: SeparateCritic | SharedCritic) -> Batch:
    """Seven rows of all lengths with a masked span; old scores a little off the present ones."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([9, 5, 2, 4, 1, 8, 3])
    mask = torch.arange(9) < lengths[:, None]
    mask[1, 1:3] = False
    batch = Batch(
        prompt_tokens=torch.randint(3, 16, (7, 3), generator=generator),
        prompt_lengths=torch.tensor([3, 1, 2, 3, 1, 2, 3]),
        response_tokens=torch.randint(3, 16, (7, 9), generator=generator),
        response_lengths=lengths,
        loss_mask=mask,
        group_ids=torch.arange(7),
        turn_index=torch.where(mask, (torch.arange(9) > 2).long(), -1),
    )

    def near(tensor: Tensor) -> Tensor:
        return tensor + 0.2 * torch.randn(7, 9, generator=generator)

    values = near(critic.values(batch))
    advantages, returns = gae(torch.randn(7, 9, generator=generator), values, mask)
    logprobs = policy.logprobs(batch).logprobs_BT
    return batch.replace(
        old_logprobs=near(logprobs), ref_logprobs=near(logprobs), values=values, advantages=advantages, returns=returns
    )


def gradients(
    kind: str, budget: int, aggregation: str, monkeypatch: pytest.MonkeyPatch, fill: float | None = None
) -> Any:
    """Gradients of both models in one update, caught before the step, and the metrics."""
    caught: list[dict[str, Tensor]] = []

    def keep(self: WeightOptimizer, step: int, grad_norm: Tensor) -> float:
        caught.append({n: p.grad.clone() for n, p in self._parameters.items() if p.grad is not None})
        return 0.0

    monkeypatch.setattr(WeightOptimizer, "step", keep)
    policy, critic = build(kind, budget)
    batch = ppo_batch(policy, critic)
    if fill is not None:
        fields = ("old_logprobs", "ref_logprobs", "values", "advantages", "returns")
        batch = batch.replace(**{f: torch.where(batch.loss_mask, getattr(batch, f), fill) for f in fields})
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
def test_cutting_a_minibatch_changes_no_gradient(kind: str, aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, row = gradients(kind, 10_000, aggregation, monkeypatch)
    assert len(whole) == 2  # policy and critic (or head) step with optimizers of their own
    assert 0 < row["critic/clip_fraction"] < 1
    assert 0 < row["policy/clip_fraction"] < 1
    for budget in (30, 1):
        cut, cut_row = gradients(kind, budget, aggregation, monkeypatch)
        for one, other in zip(whole, cut, strict=True):
            assert one.keys() == other.keys()
            for name, gradient in one.items():
                torch.testing.assert_close(other[name], gradient, atol=1e-6, rtol=1e-5)
        for name in ("policy/loss", "critic/loss", "critic/clip_fraction", "critic/error_mean"):
            assert cut_row[name] == pytest.approx(row[name], abs=1e-5)


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_rubbish_in_masked_slots_changes_no_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, row = gradients(kind, 30, "token_mean", monkeypatch)
    spoilt, spoilt_row = gradients(kind, 30, "token_mean", monkeypatch, fill=float("nan"))
    assert row == spoilt_row
    for one, other in zip(clean, spoilt, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_shared_gradient_is_the_sum_of_both_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy's trunk: gradient of the policy loss + coef x that of the value loss, both known from separate models."""
    (trunk, head), _ = gradients("shared", 10_000, "token_mean", monkeypatch)
    (policy, critic), _ = gradients("separate", 10_000, "token_mean", monkeypatch)
    torch.testing.assert_close(head["weight"], 0.5 * critic["head.weight"], atol=1e-6, rtol=1e-5)
    for name, gradient in trunk.items():
        value_gradient = critic.get(f"trunk.{name.removeprefix('model.')}", torch.zeros(()))
        torch.testing.assert_close(gradient, policy[name] + 0.5 * value_gradient, atol=1e-6, rtol=1e-4)


def test_explained_variance_by_hand() -> None:
    """Returns 1, 2, 3 with variance 2/3; residuals 1, 0, 2 (mean 1) with variance 2/3; then residuals all 1."""
    policy, critic = build("shared", 100)
    batch = ppo_batch(policy, critic).select([6]).replace(returns=torch.tensor([[1.0, 2.0, 3.0]]))
    for values, explained in (([0.0, 2.0, 1.0], 0.0), ([0.0, 1.0, 2.0], 1.0), ([2.0, 2.0, 2.0], 0.0)):
        store = MetricStore()
        store.merge(describe_values(batch.replace(values=torch.tensor([values]))))
        row = derive_values(store.row())
        assert row["critic/explained_variance"] == pytest.approx(explained, abs=1e-6)
        assert row["critic/return_std"] == pytest.approx((2 / 3) ** 0.5)
        assert row.keys() == {
            "critic/value_mean", "critic/return_mean", "critic/return_std", "critic/explained_variance"
        }  # fmt: skip
    store = MetricStore()
    store.merge(describe_values(batch.replace(values=batch.returns, returns=torch.ones(1, 3))))
    assert "critic/explained_variance" not in derive_values(store.row())
