"""What an optimizer step minimises, on numbers worked out by hand."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_samples import ones_batch

from burnish.algorithms.mismatch import correction_weights, mismatch_metrics
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.forward.batch import Batch, TokenScores
from burnish.models.roles import ObjectiveValue, count_denominators
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import LikelihoodObjective, PolicyObjective

LN2 = math.log(2.0)


def corrects(level: str, mode: str, low: float, high: float) -> Callable[..., torch.Tensor]:
    return partial(correction_weights, level=level, mode=mode, low=low, high=high)


def two_rows(**fields: torch.Tensor | None) -> Batch:
    """Responses of two tokens and one; advantages 1 and -2."""
    plain = {
        "response_lengths": torch.tensor([2, 1]),
        "group_ids": torch.tensor([0, 0]),
        "advantages": torch.tensor([[1.0, 1.0], [-2.0, 0.0]]),
    }
    return ones_batch(torch.tensor([[True, True], [True, False]]), **plain | fields)


def objective(loss: str = "ppo_clip", aggregation: str = "token_mean", **fields: Any) -> PolicyObjective:
    row = POLICY_LOSSES[loss]
    return PolicyObjective(row.function, fields.pop("numbers", {}), aggregation, 4, **fields)


def logprobs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, requires_grad=True)


def value_of(objective: PolicyObjective, batch: Batch, fresh: torch.Tensor, **scores: torch.Tensor) -> ObjectiveValue:
    return objective(TokenScores(fresh, **scores), batch, count_denominators(batch))


def numbers(value: ObjectiveValue) -> dict[str, float]:
    store = MetricStore()
    store.merge(value.metrics)
    return store.row()


def test_without_old_logprobs_the_ratio_is_one_and_the_gradient_that_of_reinforce() -> None:
    fresh = logprobs([-1.0, -2.0], [-3.0, 0.0])
    value = value_of(objective(), two_rows(), fresh)
    value.loss.backward()
    # -(1 + 1 - 2) / 3 tokens
    assert value.loss.item() == pytest.approx(0.0)
    torch.testing.assert_close(fresh.grad, torch.tensor([[-1 / 3, -1 / 3], [2 / 3, 0.0]]))
    row = numbers(value)
    assert row["policy/ratio_mean"] == 1.0
    assert value.signals.ratio_deviation is None
    assert "rollout/logprob_diff_mean" not in row


def test_the_clip_is_that_of_the_numbers_and_the_largest_deviation_is_told() -> None:
    """Ratios 2, 1 and .5 with clip .2: -min(2, 1.2), -1, 2 * max(.5, .8)."""
    old = torch.tensor([[-1.0, -1.0], [-1.0, 0.0]])
    fresh = logprobs([-1.0 + LN2, -1.0], [-1.0 - LN2, 50.0])
    value = value_of(objective(numbers={"clip_low": 0.2, "clip_high": 0.2}), two_rows(old_logprobs=old), fresh)
    assert value.loss.item() == pytest.approx((-1.2 - 1.0 + 1.6) / 3)
    row = numbers(value)
    assert row["policy/clip_fraction"] == pytest.approx(2 / 3)
    assert value.signals.ratio_deviation.result() == pytest.approx(1.0)
    assert value.signals.approx_kl.result() == row["policy/approx_kl"] > 0


@pytest.mark.parametrize(
    ("aggregation", "weights", "expected"),
    [
        ("token_mean", None, (1.0 + 2.0 - 6.0) / 3),
        ("sequence_mean_token_mean", None, (1.5 - 6.0) / 2),
        ("sequence_mean_token_sum", None, (3.0 - 6.0) / 2),
        ("sequence_mean_token_sum_norm", None, (3.0 - 6.0) / 2 / 4),
        ("token_mean", torch.tensor([[0.5, 0.0], [2.0, 7.0]]), (0.5 - 12.0) / 3),
    ],
)
def test_aggregations_and_weights_of_the_batch(aggregation: str, weights: torch.Tensor | None, expected: float) -> None:
    """-A logprob is 1 and 2 in the first row, -6 in the second."""
    fresh = logprobs([-1.0, -2.0], [-3.0, 9.0])
    value = value_of(objective("reinforce", aggregation=aggregation), two_rows(weights=weights), fresh)
    assert value.loss.item() == pytest.approx(expected)
    assert numbers(value)["policy/loss"] == pytest.approx(expected)


def test_the_kl_in_the_loss_is_logged_without_its_coefficient() -> None:
    """k2 of d = 1, 2 and 0: (.5 + 2 + 0) / 3, times .3 in the loss."""
    ref = torch.tensor([[-2.0, -4.0], [-3.0, 7.0]])
    batch = two_rows(ref_logprobs=ref, advantages=torch.zeros(2, 2))
    fresh = logprobs([-1.0, -2.0], [-3.0, 0.0])
    value = value_of(objective(kl_coef=0.3, kl_estimator="k2"), batch, fresh)
    value.loss.backward()
    assert numbers(value)["policy/kl_loss"] == pytest.approx(2.5 / 3)
    assert value.loss.item() == pytest.approx(0.3 * 2.5 / 3)
    torch.testing.assert_close(fresh.grad, torch.tensor([[0.1, 0.2], [0.0, 0.0]]))


def test_the_entropy_bonus_is_taken_off_and_entropy_is_a_mean_over_trained_tokens() -> None:
    entropy = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    batch = two_rows(advantages=torch.zeros(2, 2))
    value = value_of(objective(entropy_coef=0.5), batch, logprobs([-1.0, -1.0], [-1.0, 0.0]), entropy_BT=entropy)
    assert numbers(value)["policy/entropy"] == pytest.approx(2.0)
    assert value.loss.item() == pytest.approx(-1.0)


def test_the_correction_weighs_the_policy_term_only() -> None:
    """Trainer/sampler ratios 2, 4 (bounded to 3) and 1; -A logprob 1, 1, -2; k2 of d = 1 on every token."""
    old = torch.tensor([[-1.0, -1.0], [-1.0, 0.0]])
    rollout = old - torch.tensor([[LN2, 2 * LN2], [0.0, 0.0]])
    batch = two_rows(old_logprobs=old, ref_logprobs=old - 1.0, rollout_logprobs=rollout)
    correction = corrects("token", "truncate", 0.5, 3.0)
    corrected = objective("reinforce", kl_coef=1.0, kl_estimator="k2", correction=correction)
    value = value_of(corrected, batch, old.clone().requires_grad_())
    assert value.loss.item() == pytest.approx((2.0 + 3.0 - 2.0) / 3 + 0.5)
    with pytest.raises(ValueError, match="has no rollout_logprobs"):
        value_of(corrected, two_rows(), old)


def test_a_selection_reaches_the_losses_that_take_one() -> None:
    chosen = torch.tensor([[True, False], [False, False]])
    batch = two_rows(old_logprobs=torch.tensor([[-1.0, -1.0], [-1.0, 0.0]]), selection=chosen)
    fresh = logprobs([-1.0, -1.0], [-1.0, 0.0])
    value = value_of(objective("clip_cov", takes=("selection_BT",)), batch, fresh)
    value.loss.backward()
    torch.testing.assert_close(fresh.grad, torch.tensor([[0.0, -1 / 3], [2 / 3, 0.0]]))


def test_the_likelihood_of_trained_tokens() -> None:
    batch = two_rows()
    scores = TokenScores(torch.tensor([[-1.0, -2.0], [-6.0, 5.0]]))
    value = LikelihoodObjective()(scores, batch, count_denominators(batch))
    assert value.loss.item() == pytest.approx(3.0)
    assert numbers(value)["train/loss"] == pytest.approx(3.0)


def test_the_kl_in_the_loss_can_be_weighted_by_the_ratio() -> None:
    """Ratio 2 on the first token, 1 on the second, .5 in the second row; k2 of d = 1, 2 and 4."""
    old = torch.tensor([[-1.0 - LN2, -2.0], [-3.0 + LN2, 0.0]])
    ref = torch.tensor([[-2.0, -4.0], [-7.0, 7.0]])
    batch = two_rows(old_logprobs=old, ref_logprobs=ref, advantages=torch.zeros(2, 2))
    fresh = logprobs([-1.0, -2.0], [-3.0, 0.0])
    value = value_of(objective(kl_coef=1.0, kl_estimator="k2", kl_times_ratio=True), batch, fresh)
    assert value.loss.item() == pytest.approx((2 * 0.5 + 1 * 2.0 + 0.5 * 8.0) / 3)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 4), scale=st.sampled_from([0.01, 1.0, 8.0]))
def test_the_mismatch_of_micro_batches_adds_up_to_that_of_the_step(seed: int, cut: int, scale: float) -> None:
    """However a step is cut. exp(d) - 1 - d in float32 would lose the digits of k3 where sampler and trainer agree."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(5, 6, generator=generator) < 0.7
    mask[0, 0] = True
    fresh = -torch.rand(5, 6, generator=generator)
    sampled = fresh + scale * torch.randn(5, 6, generator=generator)
    batch = ones_batch(mask, advantages=torch.ones(5, 6), rollout_logprobs=sampled)
    store = MetricStore()
    for rows in torch.arange(5).split(cut):
        value = objective()(TokenScores(fresh[rows]), batch.select(rows), count_denominators(batch))
        store.merge(value.metrics)
    row = store.row()
    for name, metric in mismatch_metrics(fresh, sampled, mask).items():
        assert row[f"rollout/{name}"] == pytest.approx(metric.result(), rel=1e-4), name
