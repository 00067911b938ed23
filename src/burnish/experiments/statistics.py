"""Means over seeds with their 95 % intervals, and differences of two groups of runs, paired and not.

The intervals are Student's (1908, https://doi.org/10.1093/biomet/6.1.1), and Welch's (1947,
https://doi.org/10.1093/biomet/34.1-2.28) for groups without pairs, with the degrees of freedom of Satterthwaite (1946,
https://doi.org/10.2307/3002019).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

OUTSIDE = 0.05
"""Probability that an interval does not cover the true mean."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over so many numbers, and half the width of its 95 % interval: None if a single number leaves it open."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float | None:
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        return None if self.half_width is None else self.mean + self.half_width


def mean_interval(numbers: Sequence[float]) -> Interval:
    """The mean of independent numbers with its interval. There must be one at least."""
    mean, count = statistics.fmean(numbers), len(numbers)
    if count < 2:
        return Interval(mean, None, count)
    return Interval(mean, t_quantile(count - 1) * statistics.stdev(numbers) / math.sqrt(count), count)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The mean of second - first, number by number. What the two numbers of a pair share is not in its interval."""
    return mean_interval([later - earlier for earlier, later in zip(first, second, strict=True)])


def unpaired_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """The difference of the means, second - first, of numbers that have nothing in common (Welch)."""
    difference, count = statistics.fmean(second) - statistics.fmean(first), min(len(first), len(second))
    if count < 2:
        return Interval(difference, None, count)
    squares = [statistics.variance(numbers) / len(numbers) for numbers in (first, second)]
    if not any(squares):
        return Interval(difference, 0.0, count)
    of_each = [square**2 / (len(numbers) - 1) for square, numbers in zip(squares, (first, second), strict=True)]
    freedom = sum(squares) ** 2 / sum(of_each)
    return Interval(difference, t_quantile(freedom) * math.sqrt(sum(squares)), count)


@functools.cache
def t_quantile(freedom: float) -> float:
    """The number that Student's t with so many degrees of freedom (1 at least) exceeds in amount once in twenty times.

    P(|t| > x) is the regularised incomplete beta function of freedom / (freedom + x^2) with freedom / 2 and 1/2.
    """
    from mpmath import betainc, findroot  # which takes a third of a second

    def excess(x: float) -> float:
        return betainc(freedom / 2, 0.5, 0, freedom / (freedom + x * x), regularized=True) - OUTSIDE

    return float(findroot(excess, (1.9, 12.8), solver="illinois"))
