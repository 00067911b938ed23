"""Length distributions: quantiles, means after the cut, and draws that stand for more responses than there are."""

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ConfigError
from burnish.simulation.lengths import LogNormalLengths, RecordedLengths, draw


def test_recorded_lengths_are_sorted_and_each_is_equally_likely() -> None:
    lengths = RecordedLengths.of([30, 10, 20, 40])
    assert [lengths.quantile(part) for part in (0.0, 0.25, 0.5, 0.99, 1.0)] == [10, 20, 30, 40, 40]
    assert (lengths.mean, lengths.longest) == (25, 40)


def test_recorded_lengths_refuse_no_response() -> None:
    with pytest.raises(ConfigError, match="no response"):
        RecordedLengths.of([])


def test_log_normal_median_and_cut() -> None:
    lengths = LogNormalLengths(median=100, sigma=1.0, longest=200)
    assert lengths.quantile(0.5) == 100
    assert lengths.quantile(0.8413447) == 200  # one standard deviation: 272 without the cut
    assert lengths.quantile(0.1586553) == 37  # 100 / e


def test_log_normal_mean_counts_the_cut_responses() -> None:
    lengths = LogNormalLengths(median=100, sigma=0.8, longest=250)
    dice = random.Random(1)
    drawn = [min(250.0, 100 * math.exp(0.8 * dice.gauss(0, 1))) for _ in range(40_000)]
    assert lengths.mean == pytest.approx(statistics.fmean(drawn), rel=0.01)
    assert LogNormalLengths(100, 0.8, 10**9).mean == pytest.approx(100 * math.exp(0.32))


@settings(max_examples=25)
@given(st.floats(0.05, 0.9), st.floats(0.2, 1.5))
def test_with_mean_finds_the_mean(part: float, sigma: float) -> None:
    lengths = LogNormalLengths.with_mean(part * 1000, sigma, 1000)
    assert lengths.mean == pytest.approx(part * 1000, rel=1e-4)


def test_with_mean_refuses_a_mean_above_the_longest() -> None:
    with pytest.raises(ConfigError, match="at most 100"):
        LogNormalLengths.with_mean(100, 1.0, 100)


@settings(max_examples=25)
@given(st.integers(1, 50), st.integers(1, 8))
def test_draws_are_in_range(count: int, stands_for: int) -> None:
    lengths = LogNormalLengths(50, 1.0, 400)
    drawn = draw(lengths, count, random.Random(3), stands_for=stands_for)
    assert len(drawn) == count
    assert all(1 <= tokens <= 400 for tokens in drawn)


def test_a_reduced_draw_has_the_mean_and_the_longest_of_all() -> None:
    lengths, dice = LogNormalLengths(100, 1.0, 100_000), random.Random(5)
    reduced = [draw(lengths, 256, dice, stands_for=8) for _ in range(60)]
    whole = [draw(lengths, 2048, dice) for _ in range(60)]
    longest = statistics.median(max(drawn) for drawn in reduced)
    assert longest == pytest.approx(statistics.median(max(drawn) for drawn in whole), rel=0.15)
    assert statistics.fmean(sum(drawn) / 256 for drawn in reduced) == pytest.approx(lengths.mean, rel=0.05)
    plain = statistics.median(max(draw(lengths, 256, dice)) for _ in range(60))
    assert plain < 0.7 * longest  # what a small draw by itself would miss
