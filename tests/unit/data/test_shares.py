"""Exact shares of domains: by hand, and as properties of any shares."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.data.shares import Shares
from burnish.errors import DataError


def test_shares_of_seven_prompts() -> None:
    """2.8, 2.1 and 2.1 prompts a step: 28, 21 and 21 in ten."""
    shares = Shares([{0: 0.4}, {0: 0.3}, {0: 0.3}], 7)
    steps = [shares.counts(step) for step in range(1, 11)]
    assert [sum(column) for column in zip(*steps, strict=True)] == [28, 21, 21]
    assert all(first in (2, 3) and second in (2, 3) and third in (2, 3) for first, second, third in steps)


def test_stages_begin_at_their_step() -> None:
    shares = Shares([{0: 3.0, 4: 0.0}, {0: 1.0}], 4)
    assert [shares.counts(step) for step in (1, 3, 4, 5)] == [[3, 1], [3, 1], [0, 4], [0, 4]]


def test_a_stage_without_shares_is_refused() -> None:
    with pytest.raises(DataError, match="all domains are 0"):
        Shares([{0: 1.0, 5: 0.0}], 4)


@pytest.mark.slow
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), st.integers(1, 40), st.integers(1, 40))
def test_every_step_and_every_sum_is_within_one_of_its_share(weights: list[int], size: int, back: int) -> None:
    shares = Shares([{0: float(weight)} for weight in weights], size)
    quotas = [Fraction(weight * size, sum(weights)) for weight in weights]
    steps = [shares.counts(step) for step in range(1, 41)]
    for number, counts in enumerate(steps, 1):
        assert sum(counts) == size
        for domain, quota in enumerate(quotas):
            assert abs(counts[domain] - quota) < 1
            assert abs(sum(step[domain] for step in steps[:number]) - quota * number) < 1
    assert shares.counts(back) == steps[back - 1], "a pure function of the step"
