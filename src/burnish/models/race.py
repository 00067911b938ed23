"""Which of several ways to compute the same is the fastest on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AT_LEAST = 1.02
"""So many times as fast as a plainer way must a faster one be to be worth its parts and its memory. What two runs of
the same code differ by is less than that after a few rounds."""
BUDGET_SECONDS = 1.5
"""Rounds end after this, but never before `_FEWEST`."""
_FEWEST, _ENOUGH, _MOST = 3, 5, 25
_SAMPLE_SECONDS = 2e-3
"""A sample repeats what is faster until it takes about this long, so that neither clock nor interrupts count."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute something; `run` does it once."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`seconds`: the median of each way. `winner` is the way to take."""

    winner: str
    seconds: dict[str, float]

    def times_as_fast(self, other: str) -> float:
        """How many times as fast as `other` the winner is."""
        return self.seconds[other] / self.seconds[self.winner]


def race(ways: Sequence[Way], *, clock: Callable[[], float] = time.perf_counter) -> Outcome:
    """Run all ways in turn, round after round, until it is clear which to take or time is up. The last way is the
    plainest; from there upwards each takes the place of a plainer one if it is at least AT_LEAST times as fast.

    Ways are compared within a round, so that a machine that is slower for a while is slower for all of them.
    """
    repeats = [_repeats(way, clock) for way in ways]
    rounds: list[list[float]] = []
    started = clock()
    while len(rounds) < _MOST:
        rounds.append([_sample(way, count, clock) for way, count in zip(ways, repeats, strict=True)])
        if len(rounds) >= _FEWEST and clock() - started > BUDGET_SECONDS:
            break
        if len(rounds) >= _ENOUGH and _is_clear(rounds):
            break
    columns = list(zip(*rounds, strict=True))
    seconds = {way.name: statistics.median(column) for way, column in zip(ways, columns, strict=True)}
    return Outcome(ways[_winner(rounds)].name, seconds)


def _repeats(way: Way, clock: Callable[[], float]) -> int:
    """The first run warms up (oneDNN compiles, memory is fetched), the second tells how long one takes."""
    way.run()
    once = _sample(way, 1, clock)
    return 1 if once >= _SAMPLE_SECONDS else min(100, math.ceil(_SAMPLE_SECONDS / max(once, 1e-9)))


def _sample(way: Way, count: int, clock: Callable[[], float]) -> float:
    """Seconds of one run, the mean of `count`."""
    started = clock()
    for _ in range(count):
        way.run()
    return (clock() - started) / count


def _winner(rounds: list[list[float]]) -> int:
    best = len(rounds[0]) - 1
    for way in reversed(range(best)):
        if statistics.median(_ratios(rounds, best, way)) >= AT_LEAST:
            best = way
    return best


def _ratios(rounds: list[list[float]], plainer: int, way: int) -> list[float]:
    return [seconds[plainer] / max(seconds[way], 1e-12) for seconds in rounds]


def _is_clear(rounds: list[list[float]]) -> bool:
    """Whether three quarters of the rounds say the same of every way, compared with the one to take."""
    best = _winner(rounds)
    for way in range(len(rounds[0])):
        if way == best:
            continue
        plainer, faster = (best, way) if way < best else (way, best)
        low, _, high = statistics.quantiles(_ratios(rounds, plainer, faster), n=4)
        if low < AT_LEAST <= high:
            return False
    return True
