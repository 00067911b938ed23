"""Intervals against printed tables of t, and against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.algorithms.statistics import mean_interval, paired_difference, t_quantile, unpaired_difference

PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045, 120: 1.980}
numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


@pytest.mark.parametrize(("freedom", "quantile"), PRINTED.items())
def test_quantiles_are_those_of_the_printed_table(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_a_mean_with_its_interval() -> None:
    """Mean 3, variance 10 / 4, so the standard error is sqrt(.5)."""
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.count) == (3.0, 5)
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)
    assert found.low + found.high == pytest.approx(6.0)


def test_one_number_has_no_interval() -> None:
    found = mean_interval([0.5])
    assert (found.mean, found.half_width, found.low, found.high) == (0.5, None, None, None)


def test_pairs_take_out_what_both_share() -> None:
    """The differences are 1, 2, 3: mean 2, standard error 1 / sqrt(3). The groups themselves vary by hundreds."""
    first, second = [0.0, 100.0, 200.0], [1.0, 102.0, 203.0]
    paired, unpaired = paired_difference(first, second), unpaired_difference(first, second)
    assert paired.mean == unpaired.mean == pytest.approx(2.0)
    assert paired.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert unpaired.half_width > 90 * paired.half_width  # type: ignore[operator]


def test_welch_by_hand() -> None:
    """Variances 1 and 16 over 3 and 3: squares 1/3 and 16/3, so (17/3)^2 / ((1/9 + 256/9) / 2) = 2.249 degrees of
    freedom."""
    found = unpaired_difference([1.0, 2.0, 3.0], [2.0, 6.0, 10.0])
    assert found.mean == pytest.approx(4.0)
    assert found.half_width == pytest.approx(t_quantile(2 * 17**2 / 257) * math.sqrt(17 / 3), rel=1e-9)


def test_groups_that_do_not_vary_or_are_single() -> None:
    assert unpaired_difference([1.0, 1.0], [2.0, 2.0]).half_width == 0.0
    assert unpaired_difference([1.0], [2.0, 3.0]).half_width is None


@given(numbers, st.floats(-10, 10), st.floats(0.1, 10))
def test_an_interval_moves_and_scales_with_its_numbers(given_numbers: list[float], shift: float, scale: float) -> None:
    before, after = mean_interval(given_numbers), mean_interval([shift + scale * number for number in given_numbers])
    assert after.mean == pytest.approx(shift + scale * before.mean, abs=1e-6)
    assert after.half_width == pytest.approx(scale * before.half_width, abs=1e-6)  # type: ignore[operator]
