"""Which of several ways to compute the same is the fastest on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AT_LEAST = 1.02
"""So many times as fast as a plainer way must a faster one be to be worth its parts and its memory."""
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
class RaceResult:
    """`seconds`: the best round of each way. `winner` is the way to take."""

    winner: str
    seconds: dict[str, float]


def race(
    ways: Sequence[Way],
    *,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.perf_counter,
) -> RaceResult:
    """Run all ways in turn, round after round, until it is clear which to take or time is up. The last way is the
    plainest; from there upwards each takes the place of a plainer one if it is at least AT_LEAST times as fast.

    Each way counts with its best round: what else a machine does only ever adds time. Each has run once before: the
    first time oneDNN compiles, and memory is fetched. `clock` measures the ways, `wall` the patience of whoever waits.
    """
    repeats = [_repeats(way, clock) for way in ways]
    rounds: list[list[float]] = []
    started = wall()
    while len(rounds) < _MOST:
        rounds.append([_sample(way, count, clock) for way, count in zip(ways, repeats, strict=True)])
        best = _per_way(rounds, min)
        if len(rounds) >= _FEWEST and wall() - started > BUDGET_SECONDS:
            break
        if len(rounds) >= _ENOUGH and _winner(best) == _winner(_per_way(rounds, statistics.median)):
            break
    return RaceResult(ways[_winner(best)].name, {way.name: seconds for way, seconds in zip(ways, best, strict=True)})


def _repeats(way: Way, clock: Callable[[], float]) -> int:
    """Runs in a sample, by how long one takes."""
    once = _sample(way, 1, clock)
    return 1 if once >= _SAMPLE_SECONDS else min(100, math.ceil(_SAMPLE_SECONDS / max(once, 1e-9)))


def _sample(way: Way, count: int, clock: Callable[[], float]) -> float:
    """Seconds of one run, the mean of `count`."""
    started = clock()
    for _ in range(count):
        way.run()
    return max(1e-9, (clock() - started) / count)


def _per_way(rounds: list[list[float]], summary: Callable[[Sequence[float]], float]) -> list[float]:
    return [summary(column) for column in zip(*rounds, strict=True)]


def _winner(seconds: Sequence[float]) -> int:
    best = len(seconds) - 1
    for way in reversed(range(best)):
        if seconds[best] >= AT_LEAST * seconds[way]:
            best = way
    return best
