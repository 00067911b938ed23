"""Held-out values by hand."""

from __future__ import annotations

import pytest
import torch
from plain_samples import group_of, plain_rollout

from burnish.forward.batch import Batch
from burnish.trainers.rl.evaluation import held_out_values
from burnish.types import Metric, Rollout, RolloutGroup


class Tokens:
    """A critic whose value before a token is a tenth of the token."""

    shares_trunk = False

    def values(self, batch: Batch) -> torch.Tensor:
        return batch.response_tokens / 10


def response(group: int, sample: int, first: int, reward: float | None) -> Rollout:
    tokens = (first, 9)[: 1 + group]
    return plain_rollout(len(tokens), reward, group=group, index=sample, response_tokens=tokens)


def described(*groups: RolloutGroup) -> tuple[dict[str, float | None], dict[tuple[int, int], tuple[float, ...]]]:
    metrics, values = held_out_values(Tokens(), groups, pad_token_id=0)  # type: ignore[arg-type]
    assert all(isinstance(metric, Metric) for metric in metrics.values())
    return {name: metric.result() for name, metric in metrics.items()}, dict(values)  # type: ignore[arg-type]


def test_greedy_responses_are_judged_where_there_are_no_others() -> None:
    """Values .2 and .6, scores 0 and 1: residuals -.2 and .4, variance .09 against .25."""
    row, values = described(group_of(greedy=response(0, -1, 2, 0.0)), group_of(greedy=response(1, -1, 6, 1.0)))
    assert row["eval/value_mean"] == pytest.approx(0.4)
    assert row["eval/explained_variance"] == pytest.approx(1 - 0.09 / 0.25)
    assert values == {(0, -1, 0): pytest.approx((0.2,)), (1, -1, 0): pytest.approx((0.6, 0.9))}


def test_sampled_responses_are_preferred_and_failed_ones_left_out() -> None:
    sampled = response(0, 0, 4, 1.0), response(0, 1, 8, None)
    row, values = described(group_of(*sampled, greedy=response(0, -1, 2, 0.0)))
    assert row == {"eval/value_mean": pytest.approx(0.4)}  # one score has no variance to explain
    assert set(values) == {(0, -1, 0), (0, 0, 0), (0, 1, 0)}


def test_nothing_judged_says_nothing() -> None:
    assert described(group_of(greedy=response(0, -1, 2, None)))[0] == {"eval/value_mean": None}
    assert described() == ({}, {})
