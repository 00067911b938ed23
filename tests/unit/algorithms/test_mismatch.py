import math

import pytest
import torch

from burnish.algorithms import mismatch
from burnish.algorithms.mismatch import correction_weights, mismatch_metrics
from burnish.errors import ConfigError

NAN = float("nan")
ROLLOUT = torch.tensor([[-2.0, -2.0, NAN], [-1.0, -1.0, -1.0]])
RATIOS = torch.tensor([[4.0, 0.5, 1.0], [0.5, 0.5, 0.5]])
MASK = torch.tensor([[True, True, False], [True, True, True]])
OLD = torch.where(MASK, ROLLOUT + RATIOS.log(), torch.full_like(ROLLOUT, NAN))


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [[2.0, 0.5, 0.0], [0.5, 0.5, 0.5]]),
        ("token", "mask", [[0.0, 0.5, 0.0], [0.5, 0.5, 0.5]]),
        ("sequence", "truncate", [[2.0, 2.0, 0.0], [0.25, 0.25, 0.25]]),
        ("sequence", "mask", [[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_weights_by_level_and_mode(level, mode, expected):
    weights = correction_weights(OLD, ROLLOUT, MASK, level=level, mode=mode, low=0.25, high=2.0)
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("mask_mean", 0.5, 1.5, [[4.0, 0.5, 0.0], [0.5, 0.5, 0.5]]),  # geometric means sqrt(2) and .5
        ("mask_mean", 0.6, 1.5, [[4.0, 0.5, 0.0], [0.0, 0.0, 0.0]]),
        ("mask_mean", 0.5, 1.4, [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
        ("mask_max", 0.5, 3.0, [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]]),
        ("mask_max", 0.5, 4.1, [[4.0, 0.5, 0.0], [0.5, 0.5, 0.5]]),
    ],
)
def test_responses_are_judged_as_a_whole_and_keep_their_tokens_ratios(mode, low, high, expected):
    weights = correction_weights(OLD, ROLLOUT, MASK, level="sequence", mode=mode, low=low - 1e-6, high=high + 1e-6)
    torch.testing.assert_close(weights, torch.tensor(expected))
    with pytest.raises(ConfigError, match=f"unknown correction mode '{mode}'"):
        correction_weights(OLD, ROLLOUT, MASK, level="token", mode=mode)


def test_bad_responses_that_the_policy_has_left_are_dropped():
    """Means of log(sampler / policy): -log(2) / 2 = -.347 and log 2 = .693."""
    advantages = torch.tensor([[-1.0, -1.0, NAN], [-1.0, 1.0, -1.0]])
    assert not mismatch.off_policy_tokens(OLD, ROLLOUT, advantages, MASK, delta=0.7).any()
    bad = mismatch.off_policy_tokens(OLD, ROLLOUT, advantages, MASK, delta=0.6).tolist()
    assert bad == [[False] * 3, [True, False, True]]


def test_weights_carry_no_gradient_and_never_leave_the_bounds():
    old = torch.tensor([[500.0, -500.0]], requires_grad=True)
    for level in ("token", "sequence"):
        weights = correction_weights(old, torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), level=level, low=0.1)
        assert not weights.requires_grad
        assert ((weights >= 0.1) & (weights <= 2.0)).all()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"level": "tokens"}, "did you mean 'token'"),
        ({"mode": "trunc"}, "did you mean 'truncate'"),
        ({"low": 1.5}, "bounds are"),
        ({"high": 0.5}, "bounds are"),
        ({"high": math.inf}, "bounds are"),
    ],
)
def test_corrections_that_cannot_be_meant_are_refused(numbers, words):
    with pytest.raises(ConfigError, match=words):
        correction_weights(OLD, ROLLOUT, MASK, **numbers)


def test_metrics_of_trained_tokens_only():
    metrics, d = mismatch_metrics(OLD, ROLLOUT, MASK), [math.log(4), *[math.log(0.5)] * 4]
    expected = {
        **{"logprob_diff_mean": sum(map(abs, d)) / 5, "logprob_diff_max": math.log(4)},
        **{"logprob_k3": sum(math.exp(x) - 1 - x for x in d) / 5, "weight_mean": 6 / 5, "weight_square_mean": 17 / 5},
    }
    assert {name: metrics[name].result() for name in expected} == pytest.approx(expected)
    assert mismatch.effective_sample_size(6 / 5, 17 / 5) == pytest.approx(36 / (5 * 17))


def test_effective_sample_size():
    """Equal weights; one token of four has them all; the largest ratios there are."""
    assert mismatch.effective_sample_size(1.0, 1.0) == 1.0
    assert mismatch.effective_sample_size(1 / 4, 1 / 4) == pytest.approx(0.25)
    beyond = torch.full((1, 4), 500.0)
    metrics = mismatch_metrics(beyond, torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool))
    moments = (metrics[f"weight_{name}"].result() for name in ("mean", "square_mean"))
    assert mismatch.effective_sample_size(*moments) == pytest.approx(1.0)  # type: ignore[arg-type]


def test_nothing_trained_measures_nothing():
    empty = torch.zeros(2, 3, dtype=torch.bool)
    assert all(metric.result() is None for metric in mismatch_metrics(OLD, ROLLOUT, empty).values())


def test_ratio_deviation():
    assert mismatch.ratio_deviation(ROLLOUT, ROLLOUT, MASK).result() == 0.0
    assert mismatch.ratio_deviation(OLD, ROLLOUT, MASK).result() == pytest.approx(3.0)
