"""Statistics of plain numbers, without tensors: variances from moments, probabilities, fractions and means with their
intervals, and differences of two groups of runs, paired and not.

The intervals of means are Student's (1908, https://doi.org/10.1093/biomet/6.1.1), and Welch's (1947,
https://doi.org/10.1093/biomet/34.1-2.28) for groups without pairs, with the degrees of freedom of Satterthwaite (1946,
https://doi.org/10.2307/3002019).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MOMENT_ROUNDING = 1e-13
"""Relative rounding error of a sum of thousands of float64 numbers, which were float32 themselves."""
LEAST_VARIANCE = 1e-12
"""Below this there is no variance to explain: the values are equal up to rounding."""


def variance_of(square_mean: float, mean: float) -> float:
    """Variance from the first two moments. 0 if it does not exceed the rounding error of the moments, so that equal
    numbers have variance 0 and not noise."""
    variance = square_mean - mean * mean
    return variance if variance > MOMENT_ROUNDING * square_mean else 0.0


def explained_variance(residual_variance: float, variance: float) -> float | None:
    """1 - Var(residual) / Var(target). 1 is a perfect prediction, 0 is no better than a constant, below 0 is worse.

    None if the target hardly varies.
    """
    return 1 - residual_variance / variance if variance > LEAST_VARIANCE else None


def wilson_interval(share: float, count: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Confidence interval (95 % by default) for a fraction of `count` independent trials (Wilson 1927,
    https://doi.org/10.1080/01621459.1927.10502953)."""
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(num_samples: int, num_solved: int, k: int) -> float:
    """Probability that at least one of k samples, drawn without replacement, is solved: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021 (https://arxiv.org/abs/2107.03374).
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {num_samples}")
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)


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
