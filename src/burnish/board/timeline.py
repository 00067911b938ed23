"""The work of each process of a run over time, and the phases of the run in which it waited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

from burnish.observability.timeline import MAIN, WorkSpan, read_spans

Interval = tuple[float, float]


class Lane(TypedDict):
    """A process. at_work: its share of the time; during: of each phase of the run. spans: work, begin and end."""

    process: str
    at_work: float
    during: dict[str, float]
    spans: list[tuple[str, float, float]]


class Picture(TypedDict):
    """Lanes over some steps; the main process comes first. Times are seconds from the first span on. ends: of steps.
    phases: the run's, each with its share of the time."""

    seconds: float
    ends: dict[int, float]
    phases: dict[str, float]
    lanes: list[Lane]


def picture_of(folder: Path, first: int, last: int) -> Picture:
    """Draw the steps from `first` to `last` of the run in a folder. No lanes if nothing is recorded of them.

    A process may work on what a later step needs, so only the time between the main process's first and last span is
    counted. OSError if the file cannot be read.
    """
    by_step = read_spans(folder, first, last)
    spans = [span for step in by_step.values() for span in step]
    main = [span for span in spans if span.process == MAIN]
    if not main:
        return {"seconds": 0.0, "ends": {}, "phases": {}, "lanes": []}
    began, ended = min(span.began for span in main), max(span.ended for span in main)
    within = [_cut(span, began, ended) for span in spans if span.began < ended and span.ended > began]
    phases: dict[str, list[Interval]] = {}
    for span in main:
        phases.setdefault(span.work, []).append((span.began, span.ended))
    ends = {step: [span.ended for span in found if span.process == MAIN] for step, found in by_step.items()}
    whole = max(ended - began, 1e-9)
    return {
        "seconds": ended - began,
        "ends": {step: max(moments) - began for step, moments in ends.items() if moments},
        "phases": {name: _length(intervals) / whole for name, intervals in phases.items()},
        "lanes": [
            _lane(process, [span for span in within if span.process == process], phases, began, whole)
            for process in sorted({span.process for span in within}, key=lambda name: (name != MAIN, name))
        ],
    }


def _lane(
    process: str, spans: Sequence[WorkSpan], phases: dict[str, list[Interval]], began: float, whole: float
) -> Lane:
    work = _union((span.began, span.ended) for span in spans)
    return {
        "process": process,
        "at_work": _length(work) / whole,
        "during": {
            name: _length(_common(work, intervals)) / max(_length(intervals), 1e-9)
            for name, intervals in phases.items()
        },
        "spans": [(span.work, span.began - began, span.ended - began) for span in spans],
    }


def _cut(span: WorkSpan, began: float, ended: float) -> WorkSpan:
    return span._replace(began=max(span.began, began), ended=min(span.ended, ended))


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as intervals that do not overlap."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _common(ours: Sequence[Interval], theirs: Sequence[Interval]) -> list[Interval]:
    """The times that two lists of intervals have in common; those of each list do not overlap."""
    return [(max(a[0], b[0]), min(a[1], b[1])) for a in ours for b in theirs if max(a[0], b[0]) < min(a[1], b[1])]
