"""Which settings are fastest: one field after the other, until a round changes nothing. Standard library only.

The first round tries every value of every field, later rounds of numbers only those next to the best. A trial whose
first step takes longer than the shortest so far by more than PATIENCE is given up after it, so slow settings cost one
step each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from settings import Space, TrlSettings, replaced
from workloads import WORKLOADS

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
    as slower than everything. `near`: the start was searched for similar work, so only numbers may differ, and of these
    only the neighbours of the fastest so far are tried."""
    trials: dict[TrlSettings, Trial] = {}

    def try_once(settings: TrlSettings) -> None:
        if settings not in trials:
            shortest = min((t.first_seconds for t in _whole(trials.values()) if t.first_seconds), default=None)
            trials[settings] = measure(settings, None if shortest is None else PATIENCE * shortest)

    try_once(start)
    before, everything = None, not near
    while before != (before := best(list(trials.values()), start)):
        for field, values in space.items():
            present = best(list(trials.values()), start)
            here = getattr(present, field)
            if _is_number(here):
                values = values if everything else _next_to(here, values)
            elif near:
                continue
            for value in values:
                try_once(replaced(present, **{field: value}))
        everything = False
    return list(trials.values())


def best(trials: Sequence[Trial], start: TrlSettings) -> TrlSettings:
    """The settings with the most tokens per second; `start` if no trial has any."""
    return by_speed(trials, start)[0]


def by_speed(trials: Sequence[Trial], start: TrlSettings) -> list[TrlSettings]:
    """All settings whose trials were not given up, the fastest first; `start` alone if there are none."""
    fastest_first = sorted(_whole(trials), key=lambda trial: trial.tokens_per_second or 0.0, reverse=True)
    return [trial.settings for trial in fastest_first] or [start]


def fastest_before(
    rows: Sequence[Mapping[str, Any]], workload: str, precision: str, stamp: Mapping[str, Any]
) -> TrlSettings | None:
    """TRL's fastest settings in another workload of the same model, at this precision and with the same switched off;
    None if there is none yet."""
    for row in reversed(rows):
        alike = (row["precision"], row["switched_off"]) == (precision, stamp["switched_off"])
        if row["peer"] == "TRL" and alike and WORKLOADS[row["workload"]].model == WORKLOADS[workload].model:
            return TrlSettings(**row["chosen"])
    return None


def _whole(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.tokens_per_second is not None]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _next_to(present: int, values: tuple[int, ...]) -> tuple[int, ...]:
    """The number and its neighbours."""
    here = values.index(present)
    return values[max(here - 1, 0) : here + 2]
