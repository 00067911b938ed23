"""How something grows with a size: the exponent of a power beside a fixed part, how sure it is, and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

EXPONENTS = np.arange(-100, 401) / 100
"""What is tried; a series that asks for more than 4 is told as 4."""
STANDARD_ERRORS = 2.0
"""Half the width of the interval given for an exponent."""

Verdict = Literal["within", "unclear", "broken"]


@dataclass(frozen=True)
class Growth:
    """`fixed + factor * size ** exponent`, or with `peak` the larger of the two; the data leave the exponent between
    `low` and `high`."""

    fixed: float
    factor: float
    exponent: float
    low: float
    high: float
    error: float
    """Sum of squared relative errors."""
    peak: bool = False

    def at(self, size: float) -> float:
        power = self.factor * size**self.exponent
        return max(self.fixed, power) if self.peak else self.fixed + power


def fit_growth(sizes: Sequence[float], amounts: Sequence[float], *, noise: float) -> Growth:
    """A fixed cost and a power, neither below 0, fitted to relative errors.

    A straight line in log-log axes would tell a fixed cost as a small exponent and let growth hide behind it; here it
    is fitted beside the power. `noise` is the relative standard deviation of an amount measured again; the fit's own
    residuals count instead where they are larger. The interval holds every exponent whose best fit is within two
    standard errors of the best one (profile of the sum of squares), so that an exponent that the data do not tell, as
    where nothing grows, has a wide one. Raises ValueError for fewer than four points or amounts not above 0.
    """
    x, y = _checked(sizes, amounts, at_least=4)
    tried = [exponent for exponent in EXPONENTS if exponent > 0]
    fits = [_fixed_and_factor((x / x[-1]) ** exponent, y) for exponent in tried]
    errors = [_error(fixed + factor * (x / x[-1]) ** k, y) for k, (fixed, factor) in zip(tried, fits, strict=True)]
    best, low, high = _interval(tried, errors, noise=noise, freedom=len(x) - 3)
    fixed, factor = fits[best]
    return Growth(fixed, factor / float(x[-1]) ** tried[best], tried[best], low, high, errors[best])


def fit_peak(sizes: Sequence[float], amounts: Sequence[float], *, noise: float) -> Growth:
    """Growth of a peak: a fixed cost may add to what grows, or be another moment's, which what grows overtakes.

    The form that fits better counts; where the second does, its exponent is that of the sizes beyond the fixed part.
    Arguments, interval and errors as in `fit_growth`.
    """
    x, y = _checked(sizes, amounts, at_least=4)
    found = [fit_growth(sizes, amounts, noise=noise)]
    for level in range(1, len(x) - 1):  # the fixed part covers the first `level` sizes, two or more lie beyond it
        fixed = float(np.mean(y[:level]))
        tried = [exponent for exponent in EXPONENTS if exponent > 0]
        powers = [(x / x[-1]) ** exponent for exponent in tried]
        factors = [_ratio(power[level:], y[level:]) for power in powers]
        errors = [_error(np.maximum(fixed, f * power), y) for f, power in zip(factors, powers, strict=True)]
        best, low, high = _interval(tried, errors, noise=noise, freedom=len(x) - 3)
        factor = factors[best] / float(x[-1]) ** tried[best]
        found.append(Growth(fixed, factor, tried[best], low, high, errors[best], peak=True))
    return min(found, key=lambda growth: growth.error)


def fit_power(sizes: Sequence[float], amounts: Sequence[float], *, noise: float) -> Growth:
    """A power alone, for what is meant to stay the same: its exponent is then about 0, whatever the amount.

    Arguments and interval as in `fit_growth`. Raises ValueError for fewer than three points or amounts not above 0.
    """
    x, y = _checked(sizes, amounts, at_least=3)
    powers = [(x / x[-1]) ** exponent for exponent in EXPONENTS]
    factors = [_ratio(power, y) for power in powers]
    errors = [_error(factor * power, y) for factor, power in zip(factors, powers, strict=True)]
    best, low, high = _interval(EXPONENTS, errors, noise=noise, freedom=len(x) - 2)
    exponent = float(EXPONENTS[best])
    return Growth(0.0, factors[best] / float(x[-1]) ** exponent, exponent, low, high, errors[best])


def judge(growth: Growth, bound: float) -> Verdict:
    """`broken` where even the interval's lower end is above the bound, `unclear` where only the exponent is."""
    if growth.low > bound:
        return "broken"
    return "within" if growth.exponent <= bound else "unclear"


def _checked(sizes: Sequence[float], amounts: Sequence[float], at_least: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(sizes, dtype=float), np.asarray(amounts, dtype=float)
    if len(x) != len(y) or len(x) < at_least:
        raise ValueError(f"{len(x)} sizes and {len(y)} amounts: {at_least} or more of each are needed, as many of both")
    if not (np.diff(x) > 0).all() or x[0] <= 0:
        raise ValueError(f"sizes must be above 0 and increase, got {list(sizes)}")
    if not (np.isfinite(y) & (y > 0)).all():
        raise ValueError(f"amounts must be above 0, got {list(amounts)}")
    return x, y


def _fixed_and_factor(power: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Least squares of (fixed + factor * power) / y - 1 with neither below 0."""
    columns = np.stack([1 / y, power / y], axis=1)
    (fixed, factor), *_ = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)
    if fixed < 0:
        return 0.0, _ratio(power, y)
    if factor < 0:
        return _ratio(np.ones(len(y)), y), 0.0
    return float(fixed), float(factor)


def _ratio(power: np.ndarray, y: np.ndarray) -> float:
    """Least squares of factor * power / y - 1."""
    return float((power / y).sum() / ((power / y) ** 2).sum())


def _error(fitted: np.ndarray, y: np.ndarray) -> float:
    return float(((fitted / y - 1) ** 2).sum())


def _interval(
    exponents: Sequence[float], errors: Sequence[float], *, noise: float, freedom: int
) -> tuple[int, float, float]:
    """(number of the best exponent, lowest, highest exponent about as good)."""
    best = int(np.argmin(errors))
    deviation = max(noise, math.sqrt(errors[best] / freedom))
    limit = errors[best] + (STANDARD_ERRORS * deviation) ** 2
    good = [float(k) for k, error in zip(exponents, errors, strict=True) if error <= limit]
    return best, min(good), max(good)
