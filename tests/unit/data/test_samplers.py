"""The sampler's position is one integer; shares hold at every draw; batches keep to their budget."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.samplers import Mixer, PromptSampler, next_batch, permutation
from burnish.errors import DataError

WEIGHTS = st.lists(st.sampled_from([0.1, 0.25, 0.3, 1.0, 1.5, 2.0, 7.0, 0.123]), min_size=1, max_size=5)
SEEDS, SIZES = st.integers(0, 3), st.integers(1, 7)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(WEIGHTS, SEEDS, SIZES, st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 3000))
def test_take_is_a_pure_function_of_position(weights, seed, size, cuts, start) -> None:
    sizes = [size + i for i in range(len(weights))]
    whole = PromptSampler(sizes, weights, seed=seed).take(sum(cuts), start)
    used = PromptSampler(sizes, weights, seed=seed)
    used.take(5, 17)  # what was drawn before must not matter
    pieces, position = [], start
    for cut in cuts:
        pieces += used.take(cut, position)
        position += cut
    assert pieces == whole


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, draws=st.integers(1, 400))
def test_every_share_is_kept_to_within_one_at_every_draw(weights, draws) -> None:
    counts: Counter[int] = Counter()
    for k, source in enumerate(Mixer(weights).sources(0, draws), start=1):
        counts[source] += 1
        for i, weight in enumerate(weights):
            assert abs(counts[i] - k * weight / sum(weights)) < 1


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(WEIGHTS, SEEDS, SIZES)
def test_each_source_loses_nothing_across_passes(weights, seed, size) -> None:
    sizes = [size + i for i in range(len(weights))]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    drawn = PromptSampler(sizes, weights, seed=seed).take(100, 0)
    for offset, n in zip(offsets, sizes, strict=True):
        mine = [i for i in drawn if offset <= i < offset + n]
        for start in range(0, len(mine) - n + 1, n):
            assert sorted(mine[start : start + n]) == list(range(offset, offset + n))


def test_passes_differ_and_seeds_differ() -> None:
    first, second = PromptSampler([50], seed=0).take(50, 0), PromptSampler([50], seed=0).take(50, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != PromptSampler([50], seed=1).take(50, 0)


def test_order_is_fixed_for_ever() -> None:
    # Recorded once: a changed order would make a resumed run draw other prompts than the run it resumes.
    assert permutation(8, 0, 0, 0) == [3, 5, 0, 6, 7, 4, 2, 1]


def test_no_shuffle() -> None:
    sampler = PromptSampler([3], seed=0, shuffle=False)
    assert (len(sampler), sampler.take(5, 2)) == (3, [2, 0, 1, 2, 0])


def test_mixture_by_hand() -> None:
    sampler = PromptSampler([2, 2], [3, 1], seed=0, shuffle=False)
    assert Counter(i // 2 for i in sampler.take(8, 0)) == {0: 6, 1: 2}
    assert Mixer([3, 1]).counts(4_000_000_001) == [3_000_000_001, 1_000_000_000]


def test_awkward_weights_step_back_quickly() -> None:
    mixer = Mixer([0.1234567, 1.0])
    forward = mixer.sources(5000, 10)
    mixer.sources(9000, 1)
    assert mixer.sources(5000, 10) == forward


@pytest.mark.parametrize("sizes", [[], [3, 0]])
def test_empty_sources_are_errors(sizes: list[int]) -> None:
    with pytest.raises(DataError, match="cannot sample"):
        PromptSampler(sizes, seed=0)


def test_weights_must_be_positive_and_one_a_source() -> None:
    with pytest.raises(DataError, match="must be positive"):
        PromptSampler([1, 1], [1, 0], seed=0)
    with pytest.raises(DataError, match="3 weights for 2 sources"):
        PromptSampler([1, 1], [1, 1, 1], seed=0)


# --- token-budget batches -------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(20, 60), SEEDS)
def test_batches_keep_the_order_and_the_budget(lengths, budget, seed) -> None:
    sampler = PromptSampler([len(lengths)], seed=seed)
    position, batches = 0, []
    while position < 2 * len(lengths):
        batch, position = next_batch(lengths, budget, sampler, position)
        batches.append(batch)
    assert [i for batch in batches for i in batch] == sampler.take(position, 0)
    sums = [sum(lengths[i] for i in batch) for batch in batches]
    assert max(sums) <= budget
    for batch_sum, following in zip(sums, batches[1:], strict=False):
        assert batch_sum + lengths[following[0]] > budget


def test_an_example_that_fits_no_batch_is_an_error() -> None:
    with pytest.raises(DataError, match="example 0 has 9 tokens and does not fit a batch of 8"):
        next_batch([9], 8, PromptSampler([1], seed=0), 0)
