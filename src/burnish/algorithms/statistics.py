"""Statistics of plain numbers: variances from moments, fractions with their uncertainty, probabilities. No tensors."""

from __future__ import annotations

import math

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
