"""Distributions of response lengths, which decide how long a synchronous step waits for its last response."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

from burnish.errors import ConfigError

_NORMAL = NormalDist()
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Lengths of recorded responses, each equally likely. `values` in ascending order."""

    values: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.values or self.values[0] < 1:
            raise ConfigError("lengths: there is no response of at least one token", remedy="give positive lengths")

    @classmethod
    def of(cls, values: Sequence[int]) -> RecordedLengths:
        return cls(tuple(sorted(values)))

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def longest(self) -> int:
        return self.values[-1]

    def quantile(self, part: float) -> int:
        """The length that this part (0 to 1) of all responses does not exceed."""
        return self.values[min(int(part * len(self.values)), len(self.values) - 1)]


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Lengths whose logarithm is normal, cut at `longest` (max_response_tokens).

    `sigma` is the standard deviation of the natural logarithm: with 1, one response in 44 is more than 7.4 times as
    long as the median.
    """

    median: float
    sigma: float
    longest: int

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.sigma > 0 and self.longest >= 1):
            raise ConfigError(
                f"lengths: median {self.median}, sigma {self.sigma} and longest {self.longest} must be above 0",
                remedy="give the median length in tokens, its spread and max_response_tokens",
            )

    @classmethod
    def with_mean(cls, mean: float, sigma: float, longest: int) -> LogNormalLengths:
        """The distribution whose mean, after the cut, is `mean`. Raises ConfigError if that is not below `longest`."""
        if not 0 < mean < longest:
            raise ConfigError(
                f"lengths: a mean of {mean:g} tokens does not fit responses of at most {longest}",
                remedy="give a mean between 0 and the longest length",
            )
        low, high = 0.0, math.log(longest) + 10 * sigma  # at the upper end nearly all responses are cut
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if cls(math.exp(middle), sigma, longest).mean < mean else (low, middle)
        return cls(math.exp(low), sigma, longest)

    @property
    def mean(self) -> float:
        """Mean of min(X, longest): the part below the cut, and the cut itself for the rest."""
        mu, cut = math.log(self.median), math.log(self.longest)
        below = math.exp(mu + self.sigma**2 / 2) * _NORMAL.cdf((cut - mu - self.sigma**2) / self.sigma)
        return below + self.longest * (1 - _NORMAL.cdf((cut - mu) / self.sigma))

    def quantile(self, part: float) -> int:
        """The length that this part (0 to 1) of all responses does not exceed."""
        inside = min(max(part, 1e-12), 1 - 1e-12)
        tokens = self.median * math.exp(self.sigma * _NORMAL.inv_cdf(inside))
        return max(1, min(round(tokens), self.longest))


Lengths: TypeAlias = RecordedLengths | LogNormalLengths
"""A distribution of response lengths in tokens."""


def draw(lengths: Lengths, count: int, dice: random.Random, *, stands_for: int = 1) -> list[int]:
    """Lengths of `count` responses in random order.

    With `stands_for` r > 1 they represent r x count responses: one from each of `count` equal parts of the
    distribution, and the longest as long as the longest of r x count, because a step waits for it. That one response
    makes their mean too high: by 1 to 2 % for a thousand of them.
    """
    if stands_for == 1:
        return [lengths.quantile(dice.random()) for _ in range(count)]
    parts = [(index + dice.random()) / count for index in range(count)]
    parts[-1] = 1 - (1 - dice.random() ** (1 / stands_for)) / count  # the largest of r in the last part
    drawn = [lengths.quantile(part) for part in parts]
    dice.shuffle(drawn)
    return drawn
