"""The work of each process over time: `timeline.jsonl` of a run, with a line for each line of metrics.

The main process measures all of it: its own phases, and how long each other process took to answer.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from burnish.observability.atomic import disk_errors, write_text_atomically

_FILE = "timeline.jsonl"
_MOST_SPANS = 10_000
_PAUSE_SECONDS = 1e-3
MAIN = "run"
"""Name of the main process."""


class WorkSpan(NamedTuple):
    """A piece of work, between two times in seconds."""

    process: str
    work: str
    began: float
    ended: float


class WorkSpans:
    """Work that was done, until it is taken; the oldest goes if nobody takes it. Threads may share it."""

    def __init__(self) -> None:
        self._spans: deque[WorkSpan] = deque(maxlen=_MOST_SPANS)

    def add(self, process: str, work: str, began: float) -> None:
        """Add work that has just ended."""
        self._spans.append(WorkSpan(process, work, began, time.monotonic()))

    def take(self) -> Sequence[WorkSpan]:
        """Return, and forget, the work; a process's spans of the same work without a pause are one."""
        taken: list[WorkSpan] = []
        newest: dict[tuple[str, str], int] = {}
        for span in [self._spans.popleft() for _ in range(len(self._spans))]:  # another thread may add meanwhile
            place = newest.get(span[:2])
            if place is None or span.began - taken[place].ended > _PAUSE_SECONDS:
                newest[span[:2]] = len(taken)
                taken.append(span)
            else:
                began = min(span.began, taken[place].began)  # one of many at a time may have begun earlier
                taken[place] = taken[place]._replace(began=began, ended=span.ended)
        return taken


class WorkingProcess(Protocol):
    """Another process of a run, as the main process sees it."""

    @property
    def name(self) -> str: ...

    @property
    def standing(self) -> str:
        """Its present work, and for how long it has been at it."""

    def take_spans(self) -> Sequence[WorkSpan]:
        """Return, and forget, the work that it has done. Times are those of `time.monotonic`."""


Processes = Callable[[], Sequence[WorkingProcess]]
"""Returns the other processes of a run."""


def nobody() -> tuple[WorkingProcess, ...]:
    """`Processes` of a run in one process."""
    return ()


class TimelineRecorder:
    """Collects a step's spans, and writes them as seconds since 1970. A resumed run loses the lines after its step.
    scoring: returns, and forgets, the work of what scores."""

    def __init__(
        self,
        run_dir: Path,
        processes: Processes = nobody,
        scoring: Callable[[], Sequence[WorkSpan]] = tuple,
        *,
        resume_step: int | None = None,
    ) -> None:
        self._file = file = run_dir / _FILE
        self._processes = processes
        self._scoring = scoring
        self._epoch = time.time() - time.monotonic()
        self._spans: list[WorkSpan] = []
        self._phase, self._since = "", 0.0
        with disk_errors(f"write {file}", file.parent):
            kept = [] if resume_step is None else [line for line in _lines(file) if line[0] <= resume_step]
            write_text_atomically(file, "".join(line for _, line in kept))

    def phase(self, name: str) -> None:
        """Begin a phase of the main process; an empty name only ends the last one."""
        now = time.monotonic()
        if self._phase:
            self._spans.append(WorkSpan(MAIN, self._phase, self._since, now))
        self._phase, self._since = name, now

    def write(self, step: int) -> None:
        """Append what was done since the last line."""
        others = (span for process in self._processes() for span in process.take_spans())
        spans = [*self._spans, *others, *self._scoring()]
        self._spans = []
        rows = [[*span[:2], *(round(self._epoch + moment, 4) for moment in span[2:])] for span in spans]
        with disk_errors(f"write {self._file}", self._file.parent), self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "spans": rows}, separators=(",", ":")) + "\n")


def read_spans(run_dir: Path, first: int, last: int) -> Mapping[int, Sequence[WorkSpan]]:
    """Read the spans of the steps from `first` to `last`. Empty without a file; lines that are not whole are left
    out. OSError if the file cannot be read."""
    lines = {step: line for step, line in _lines(run_dir / _FILE) if first <= step <= last}
    return {step: [WorkSpan(*span) for span in json.loads(line)["spans"]] for step, line in lines.items()}


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the step of each whole line, and the line."""
    if not file.exists():
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            step = line.removeprefix('{"step":').partition(",")[0]
            if line.endswith("\n") and step.isdecimal():
                yield int(step), line
