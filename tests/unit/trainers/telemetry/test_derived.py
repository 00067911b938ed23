"""What the loop works out by itself: spreads from moments, throughputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.observability.metrics import MetricStore
from burnish.trainers.telemetry.moments import derive
from burnish.types import Metric, Reduction


def test_spreads_come_from_the_moments_and_the_moments_go() -> None:
    """Rewards 1, 1, 4: mean 2, mean square 6, standard deviation sqrt 2. Advantages -1, 3: mean 1, mean square 5."""
    rewards = {"rollout/response_tokens_sum": 30.0, "reward/mean": 2.0, "reward/square_mean": 6.0}
    advantages = {"advantage/mean": 1.0, "advantage/square_mean": 5.0}
    row = derive({**rewards, **advantages, "advantage/raw_mean": 0.0, "advantage/raw_square_mean": 9.0})
    assert row["reward/std"] == pytest.approx(2**0.5)
    assert row["advantage/std"] == pytest.approx(2.0)
    assert row["advantage/raw_std"] == pytest.approx(3.0)
    assert not [name for name in row if "square" in name]


def test_a_spread_of_nothing_is_zero_and_not_nan() -> None:
    row = derive({"rollout/response_tokens_sum": 1.0, "reward/mean": 0.1, "reward/square_mean": 0.1**2 - 1e-18})
    assert row["reward/std"] == 0.0


@pytest.mark.parametrize("value", [123.4, 0.1, -1e4 / 3])
def test_equal_rewards_have_no_spread_at_all(value: float) -> None:
    readings = [Metric(Reduction.MEAN, sum([power] * 37), 37) for power in (value, value * value)]
    store = MetricStore()
    for _ in range(5):
        store.merge(dict(zip(("reward/mean", "reward/square_mean"), readings, strict=True)))
    store.add("rollout/response_tokens_sum", Metric(Reduction.SUM, 1))
    assert derive(store.row())["reward/std"] == 0.0


def test_effective_sample_size_is_the_mean_squared_over_the_mean_square() -> None:
    """Weights 1, 1, 4: (6/3)^2 / (18/3) = 2/3."""
    row = derive({"rollout/response_tokens_sum": 3.0, "rollout/weight_mean": 2.0, "rollout/weight_square_mean": 6.0})
    assert row["rollout/effective_sample_size"] == pytest.approx(2 / 3)
    assert "rollout/weight_square_mean" not in row


def test_throughputs_by_phase_and_none_without_time() -> None:
    row = derive({"rollout/response_tokens_sum": 100.0, "time/step_seconds": 5.0, "time/generate_seconds": 2.0})
    assert row["throughput/response_tokens_per_second"] == 20.0
    assert row["throughput/generate_tokens_per_second"] == 50.0
    assert "throughput/update_tokens_per_second" not in row


def test_the_row_handed_in_stays_as_it_was() -> None:
    given_row = {"rollout/response_tokens_sum": 1.0, "reward/mean": 0.0, "reward/square_mean": 1.0}
    derive(given_row)
    assert "reward/square_mean" in given_row


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.integers(1, 7))
def test_a_spread_is_the_same_however_the_readings_were_cut(rewards: list[float], cut: int) -> None:
    store = MetricStore()
    for part in (rewards[:cut], rewards[cut:]):
        store.add("reward/mean", Metric(Reduction.MEAN, sum(part), len(part)))
        store.add("reward/square_mean", Metric(Reduction.MEAN, sum(r * r for r in part), len(part)))
    row = derive(store.row() | {"rollout/response_tokens_sum": 1.0})
    expected = torch.tensor(rewards, dtype=torch.float64).std(correction=0)
    assert row["reward/std"] == pytest.approx(float(expected), abs=1e-6)
