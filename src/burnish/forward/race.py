"""A race between equivalent implementations, to find the fastest on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AT_LEAST = 1.02
"""A way must be at least this many times as fast as a plainer one to be worth its complexity and its memory."""
BUDGET_SECONDS = 1.5
"""Rounds end after this, but never before `_FEWEST`."""
_FEWEST, _ENOUGH, _MOST = 3, 5, 25
_CLEARLY = 1.25
"""Rounds end after `_FEWEST` if even the slowest of the winner is this many times as fast as the others' fastest."""
_SAMPLE_SECONDS = 2e-3
"""A sample repeats a faster run until it takes about this long, so that clock and interrupts do not matter."""

PASS_OPERATIONS = 3e10
"""Multiplications and additions of one timed pass: a tenth of a second on a fast processor. With a third of that, a
pass through layers of 15 million weights had so few tokens that all ways did little but write gradients."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to compute something; `run` does it once."""

    name: str
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class RaceResult:
    """`seconds`: the best round of each way. `winner` is the way to take."""

    winner: str
    seconds: dict[str, float]


def race(
    ways: Sequence[Contender],
    *,
    clock: Callable[[], float] = time.perf_counter,
    wall: Callable[[], float] = time.perf_counter,
) -> RaceResult:
    """Run all ways in turn, round after round, until the winner is clear or time is up. The last way is the plainest;
    going up from there, each replaces a plainer one if it is at least AT_LEAST times as fast.

    The best round of each way counts, because other load on the machine only ever adds time. Each has run once before,
    because the first run compiles and allocates. `clock` times the ways, `wall` the whole race.
    """
    started = wall()
    once = [_sample(way, 1, clock) for way in ways]
    # Runs of each way in a sample.
    repeats = [min(100, math.ceil(_SAMPLE_SECONDS / max(seconds, 1e-9))) for seconds in once]
    rounds = [once] if max(repeats) == 1 else []  # single runs of a fast way tell little
    while len(rounds) < _MOST:
        rounds.append([_sample(way, count, clock) for way, count in zip(ways, repeats, strict=True)])
        best = _per_way(rounds, min)
        if len(rounds) >= _FEWEST and (wall() - started > BUDGET_SECONDS or _is_clear(rounds)):
            break
        if len(rounds) >= _ENOUGH and _winner(best) == _winner(_per_way(rounds, statistics.median)):
            break
    return RaceResult(ways[_winner(best)].name, {way.name: seconds for way, seconds in zip(ways, best, strict=True)})


def tokens_for(weights: int, *, wanted: int, fewest: int) -> int:
    """Tokens of a forward and backward pass (6 operations per weight) through this many weights: as many as wanted,
    fewer if that exceeds PASS_OPERATIONS."""
    return max(fewest, min(wanted, int(PASS_OPERATIONS / (6 * weights))))


def _is_clear(rounds: list[list[float]]) -> bool:
    best, worst = _per_way(rounds, min), _per_way(rounds, max)
    first = _winner(best)
    return all(seconds >= _CLEARLY * worst[first] for way, seconds in enumerate(best) if way != first)


def _sample(way: Contender, count: int, clock: Callable[[], float]) -> float:
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
