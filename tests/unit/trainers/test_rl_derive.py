"""What the loop works out by itself: spreads from moments, throughputs, the order of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.config.schema import RlConfig
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl import derive, minibatch_rows
from burnish.types import Metric, Reduction


def test_spreads_come_from_the_moments_and_the_moments_go() -> None:
    """Rewards 1, 1, 4: mean 2, mean square 6, standard deviation sqrt 2. Advantages -1, 3: mean 1, mean square 5."""
    row = derive(
        {
            "rollout/response_tokens_sum": 30.0,
            "reward/mean": 2.0,
            "reward/square_mean": 6.0,
            "advantage/mean": 1.0,
            "advantage/square_mean": 5.0,
            "advantage/raw_mean": 0.0,
            "advantage/raw_square_mean": 9.0,
        }
    )
    assert row["reward/std"] == pytest.approx(2**0.5)
    assert row["advantage/std"] == pytest.approx(2.0)
    assert row["advantage/raw_std"] == pytest.approx(3.0)
    assert not [name for name in row if "square" in name]


def test_a_spread_of_nothing_is_zero_and_not_nan() -> None:
    row = derive({"rollout/response_tokens_sum": 1.0, "reward/mean": 0.1, "reward/square_mean": 0.1**2 - 1e-18})
    assert row["reward/std"] == 0.0


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


def config_of(minibatches: int, epochs: int, seed: int = 3) -> RlConfig:
    return RlConfig(
        model="m",
        rewards="exact",
        seed=seed,
        rollout={"prompts_per_step": 8, "group_size": 2},
        optimization={"minibatches": minibatches, "epochs": epochs},
    )


@given(st.integers(1, 16), st.integers(1, 6), st.integers(1, 3), st.integers(1, 5))
def test_each_epoch_takes_every_row_once_in_parts_of_almost_equal_size(
    num_rows: int, minibatches: int, epochs: int, step: int
) -> None:
    parts = [p.tolist() for p in minibatch_rows(num_rows, config_of(minibatches, epochs), step)]
    per_epoch = min(minibatches, num_rows)
    assert len(parts) == epochs * per_epoch
    for epoch in range(epochs):
        of_epoch = parts[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for part in of_epoch for row in part) == list(range(num_rows))
        sizes = [len(part) for part in of_epoch]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1


def test_the_number_of_minibatches_changes_the_number_of_steps() -> None:
    assert [len(list(minibatch_rows(16, config_of(n, 2), 1))) for n in (1, 2, 4)] == [2, 4, 8]


def test_the_order_is_a_pure_function_of_seed_step_and_epoch() -> None:
    def order(step: int, seed: int = 3) -> list[list[int]]:
        return [p.tolist() for p in minibatch_rows(16, config_of(1, 2, seed), step)]

    assert order(1) == order(1)
    first, second = order(1)
    assert first != second
    assert order(1) != order(2)
    assert order(1) != order(1, seed=4)
