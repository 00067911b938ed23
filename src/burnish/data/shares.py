"""Number of prompts of each domain in a step: exact shares, as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cmp_to_key, partial

from burnish.errors import DataError

_LOOK_AHEAD = 10_000
"""Number of steps after which shares that still agree are taken for equal."""


class Shares:
    """The sizes of the domains' parts of each step.

    In every step a domain has its share of the step, rounded up or down, and after any number of steps of a stage it
    has had its share of all of them, to within one. This is proportionate fairness: a domain whose share is not a whole
    number is a periodic task that takes at most one of the places that rounding down leaves (Baruah, Cohen, Plaxton and
    Varvel 1996, https://doi.org/10.1007/BF01940883).
    """

    def __init__(self, schedules: Sequence[Mapping[int, float]], size: int) -> None:
        """schedules: for each domain, the first step (from 0) of each stage to its share, on any scale. size: prompts
        in a step. DataError for a stage in which all shares are 0."""
        firsts = sorted({first for schedule in schedules for first in schedule})
        self._stages = {first: _Stage([_share_at(schedule, first) for schedule in schedules], size) for first in firsts}

    def counts(self, step: int) -> list[int]:
        """Prompts of each domain in this step, counted from 1."""
        first = max(first for first in self._stages if first <= step)
        return self._stages[first].counts(step - max(first, 1))


def _share_at(schedule: Mapping[int, float], step: int) -> Fraction:
    # From the decimal text, so that 0.1 is exactly a tenth.
    return Fraction(repr(float(schedule[max(first for first in schedule if first <= step)])))


@dataclass(slots=True)
class _Stage:
    """Steps with the same shares, numbered from 0. `_given` and `_at` only cache: extra places before step `_at`."""

    shares: Sequence[Fraction]
    size: int
    _given: list[int] = field(init=False)
    _at: int = 0

    def __post_init__(self) -> None:
        total = sum(self.shares, Fraction())
        if total <= 0:
            raise DataError("the shares of all domains are 0 at once", remedy="give one of them a share above 0")
        self.shares = [share / total * self.size for share in self.shares]
        self._given = [0] * len(self.shares)

    def counts(self, number: int) -> list[int]:
        if number < self._at:
            self._at, self._given = 0, [0] * len(self.shares)
        while self._at < number:
            self._given = [given + extra for given, extra in zip(self._given, self._extras(), strict=True)]
            self._at += 1
        return [math.floor(quota) + extra for quota, extra in zip(self.shares, self._extras(), strict=True)]

    def _extras(self) -> list[int]:
        """Return 1 for each domain that gets one more than its share rounded down, else 0."""
        parts = [quota % 1 for quota in self.shares]
        places = int(sum(parts))
        urgent: list[int] = []
        may: list[int] = []
        for domain, part in enumerate(parts):
            lag, sign = part * self._at - self._given[domain], _sign(part, self._at)
            if lag > 0 and sign >= 0:  # without a place now, it would be behind by one
                urgent.append(domain)
            elif not (lag < 0 and sign <= 0) and part:  # with one, it would be ahead by one
                may.append(domain)
        need = cmp_to_key(partial(_later, step=self._at))
        may.sort(key=lambda domain: need(parts[domain]))
        chosen = {*urgent, *may[: places - len(urgent)]}
        return [int(domain in chosen) for domain in range(len(parts))]


def _sign(part: Fraction, step: int) -> int:
    """Sign of the debt after this step to a domain that got everything due before it and one place in it: 1 if it is
    still owed some, 0 if it is even, -1 if it is ahead."""
    owed = part * (step + 1) - math.floor(part * step) - 1
    return (owed > 0) - (owed < 0)


def _later(a: Fraction, b: Fraction, step: int) -> int:
    """Below 0 if `a` needs the place more: at the first later step where the two differ, it is owed more."""
    if a == b:
        return 0
    for ahead in range(step + 1, step + _LOOK_AHEAD):
        first, second = _sign(a, ahead), _sign(b, ahead)
        if first != second:
            return second - first
        if first == 0:
            return 0
    return 0
