"""Which settings are fastest: one field after the other, until a round changes nothing. Standard library only.

The first round tries every value of every field, later rounds of numbers only those next to the best. A trial whose
first step takes longer than the shortest so far by more than PATIENCE is given up after it, so slow settings cost one
step each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from settings import Space, TrlSettings, replaced

PATIENCE = 1.25


@dataclass(frozen=True)
class Trial:
    """What one setting took. first_seconds: of the step that is not measured. tokens_per_second: over the measured
    steps; None for a trial that was given up after the first step. failed: why there are no figures at all."""

    settings: TrlSettings
    first_seconds: float | None
    tokens_per_second: float | None
    failed: str = ""


Measure = Callable[[TrlSettings, float | None], Trial]
"""Runs a trial. The second argument: give up if the first step takes more seconds than this."""


def search(space: Space, start: TrlSettings, measure: Measure, *, near: bool = False) -> list[Trial]:
    """All trials, in their order; `best` has the fastest. Nothing is tried twice. A failure (of memory, mostly) counts
    as slower than everything. `near`: of numbers only the neighbours of the fastest so far are tried, from the
    beginning on; else all of them once."""
    trials: dict[TrlSettings, Trial] = {}

    def try_once(settings: TrlSettings) -> None:
        if settings not in trials:
            shortest = min((t.first_seconds for t in _whole(trials.values()) if t.first_seconds), default=None)
            trials[settings] = measure(settings, None if shortest is None else PATIENCE * shortest)

    try_once(start)
    before = None
    while before != (before := best(list(trials.values()), start)):
        for field, values in space.items():
            present = best(list(trials.values()), start)
            for value in _next_to(getattr(present, field), values) if near else values:
                try_once(replaced(present, **{field: value}))
        near = True
    return list(trials.values())


def best(trials: Sequence[Trial], start: TrlSettings) -> TrlSettings:
    """The settings with the most tokens per second; `start` if no trial has any."""
    whole = _whole(trials)
    return max(whole, key=lambda trial: trial.tokens_per_second or 0.0).settings if whole else start


def _whole(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.tokens_per_second is not None]


def _next_to(present: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The neighbours of a number, or all values that are not numbers."""
    if isinstance(present, bool) or not isinstance(present, int):
        return values
    here = values.index(present)
    return values[max(here - 1, 0) : here + 2]
