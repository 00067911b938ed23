"""Fit the few numbers of a simulation to measured seconds: least squares without negative coefficients."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from burnish.errors import DataError
from burnish.simulation.settings import Decoding, Phase

_SINGULAR = 3e-5
"""Smallest singular value of columns of length 1, relative to the largest, below which they count as the same."""
_AS_GOOD = 1.0001
"""A fit with fewer terms is preferred if its error is at most this factor of the best."""


@dataclass(frozen=True, slots=True)
class DecodedStep:
    """Amount that an engine decoded in one step, and its seconds."""

    iterations: float
    """Passes of the model: one for each token of the longest row, more if rows had to wait."""
    tokens: float
    """Rows, summed over the passes."""
    context: float
    """Prompt and response tokens that the rows attended to, summed over the passes."""
    seconds: float


def decoded_step(portions: Sequence[Sequence[tuple[int, int]]], places: int, seconds: float) -> DecodedStep:
    """Compute a step of an engine with so many places, which decodes portions one after the other, from the (prompt,
    response) lengths of their rows."""
    rows = [row for portion in portions for row in portion]
    iterations = sum(passes([tokens for _, tokens in portion], places) for portion in portions)
    context = sum(tokens * prompt + tokens * (tokens - 1) / 2 for prompt, tokens in rows)
    return DecodedStep(iterations, sum(tokens for _, tokens in rows), context, seconds)


def passes(lengths: Sequence[int], places: int) -> int:
    """Count the passes until all rows are done, if each free place goes to the next row at once."""
    ends: list[int] = []
    for tokens in lengths:
        started = heapq.heappop(ends) if len(ends) >= places else 0
        heapq.heappush(ends, started + tokens)
    return max(ends, default=0)


def fit_decoding(steps: Sequence[DecodedStep]) -> Decoding:
    """Fit the costs of decoding to the measured seconds.

    Similar steps cannot separate the three terms. The fit then uses as few of them as explain the times, and is valid
    only for steps like these.
    """
    if not steps:
        raise DataError("no step with decoding seconds", remedy="record a run with rollout.engine: local")
    table = [(step.iterations, step.tokens, step.context) for step in steps]
    base, row, context = nonnegative_least_squares(table, [step.seconds for step in steps])
    return Decoding(base, row, context)


def fit_phase(points: Sequence[tuple[int, float]]) -> Phase:
    """Fit `fixed + divided / devices` to (devices, seconds). One number of devices is taken to divide perfectly."""
    if not points:
        raise DataError("no measured seconds of this phase", remedy="give seconds for at least one number of devices")
    if len({devices for devices, _ in points}) == 1:
        mean = sum(seconds for _, seconds in points) / len(points)
        return Phase(0.0, mean * points[0][0])
    fixed, divided = nonnegative_least_squares([(1.0, 1 / n) for n, _ in points], [seconds for _, seconds in points])
    return Phase(fixed, divided)


def nonnegative_least_squares(table: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Coefficients >= 0 with the least sum of squared *relative* errors; `table` has a row per target.

    Relative, because the error of a measurement grows with its length. Every subset of the (few) columns is tried; of
    fits that are equally good the one with the fewest columns is taken.
    """
    width = len(table[0])
    scaled = [[value / target for value in row] for row, target in zip(table, targets, strict=True) if target > 0]
    best, least = [0.0] * width, float(len(scaled))
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            found = _solve([[row[column] for column in chosen] for row in scaled])
            if found is None or min(found) < 0:
                continue
            error = sum((sum(f * row[c] for f, c in zip(found, chosen, strict=True)) - 1) ** 2 for row in scaled)
            if error * _AS_GOOD < least:
                best, least = [0.0] * width, error
                for column, value in zip(chosen, found, strict=True):
                    best[column] = value
    return best


def _solve(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Least-squares coefficients for targets of 1; None if the columns depend on each other."""
    sizes = np.linalg.norm(rows, axis=0) if rows else np.zeros(1)
    if sizes.min() == 0:
        return None
    found, _, rank, _ = np.linalg.lstsq(np.asarray(rows) / sizes, np.ones(len(rows)), rcond=_SINGULAR)
    return (found / sizes).tolist() if rank == len(sizes) else None
