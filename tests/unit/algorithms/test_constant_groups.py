"""Equal scores teach nothing: exactly 0 from every estimator and normaliser, whatever the score and the lengths.

A float32 mean of equal numbers is mostly not that number. What is left over is divided by a deviation of about 0.
"""

import pytest
import torch
from estimates import estimate
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnish.algorithms import shaping
from burnish.algorithms.masking import whiten
from burnish.algorithms.policy_losses import covariance_selection
from burnish.config.names import GROUP_ESTIMATORS
from burnish.errors import ModelError

EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
SCORES = st.one_of(
    st.sampled_from([123.4, 0.1, 1e-3, -7.7, 1e6 / 3]),
    st.floats(-1e6, 1e6, width=32).filter(lambda score: score == 0 or abs(score) > 1e-6),
)
SIZES = st.sampled_from([2, 3, 7, 10, 64, 1000])
SEEDS = st.integers(0, 2**32 - 1)


def lengths_of(size: int, seed: int) -> Tensor:
    return torch.randint(1, 9, (size,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@EXAMPLES
@given(score=SCORES, size=SIZES, seed=SEEDS, whitened=st.booleans())
def test_a_constant_group_among_others_gets_exactly_nothing(name, score, size, seed, whitened):
    """Also after the scores have been whitened over the step."""
    others = torch.randn(12, generator=torch.Generator().manual_seed(seed)) * abs(score) + score
    scores = torch.cat([torch.full((size,), score), others])
    scores = shaping.whiten_scores(scores) if whitened else scores
    group_ids = torch.cat([torch.zeros(size), torch.arange(12) // 4 + 1]).long()
    found = estimate(name, scores, group_ids, lengths_of(size + 12, seed))
    assert not found[:size].any()
    assert found[size:].any() or score == 0


@pytest.mark.parametrize("name", [*GROUP_ESTIMATORS, "reinforce_plus_plus", "remax"])
@EXAMPLES
@given(score=SCORES, size=SIZES, seed=SEEDS)
def test_a_constant_step_gets_exactly_nothing(name, score, size, seed):
    lengths = lengths_of(2 * size, seed)
    group_ids = torch.arange(2 * size) // size
    found = estimate(name, torch.full((2 * size,), score), group_ids, lengths)
    assert not found.any()
    mask = torch.arange(8) < lengths[:, None]
    spread = found if found.dim() == 2 else shaping.spread(found, mask)
    assert not shaping.whiten_advantages(spread, mask).any()


@EXAMPLES
@given(score=SCORES, size=SIZES, seed=SEEDS)
def test_normalisers_of_equal_values(score, size, seed):
    values, mask = torch.full((size, 8), score), torch.arange(8) < lengths_of(size, seed)[:, None]
    assert not whiten(values, mask).any()
    assert torch.equal(shaping.whiten_rewards(values, mask), torch.where(mask, values, torch.zeros(())))
    assert torch.equal(shaping.whiten_scores(values[:, 0]), values[:, 0])
    with pytest.raises(ModelError, match="the same reward"):
        shaping.reward_normalisation(values[:, 0].tolist())


@EXAMPLES
@given(score=SCORES, size=SIZES, seed=SEEDS)
def test_equal_advantages_have_no_covariance_with_anything(score, size, seed):
    logprobs = -torch.rand(size, 8, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(8) < lengths_of(size, seed)[:, None]
    assert not covariance_selection(logprobs, torch.full((size, 8), score), mask, fraction=0.5).any()


@pytest.mark.parametrize(
    "name", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "grpo_batch_std", "turn_grpo"]
)
def test_a_small_difference_of_large_scores_keeps_its_size(name):
    """In a group of 64 that score 1e5 but for one that scores 1 more, a float32 mean is off by half a hundredth."""
    scores, group_ids = torch.full((64,), 1e5), torch.zeros(64, dtype=torch.int64)
    scores[3] += 1
    small = estimate(name, scores - 1e5, group_ids, torch.ones(64))
    torch.testing.assert_close(estimate(name, scores, group_ids, torch.ones(64)), small, rtol=1e-5, atol=1e-6)
