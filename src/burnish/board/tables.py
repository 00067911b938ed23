"""The metrics of a run by name, read on from where the last reading ended."""

from __future__ import annotations

import hashlib
import math
import os
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from burnish.observability.alarms import Alarm, AlarmBell
from burnish.observability.history import TOKENS, problem_or_row

_PIECE_BYTES = 1 << 18
_SECONDS = ("time/step_seconds", "time/evaluate_seconds")


@dataclass(slots=True)
class Column:
    """The values of a metric, and the row of the table that each belongs to."""

    rows: array[int] = field(default_factory=lambda: array("l"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def is_flat(self) -> bool:
        """Return whether the metric has had one value all along, however often it was measured."""
        first = self.values[0]
        return all(value == first for value in self.values)

    def digest(self) -> str:
        """Return the same text for columns with the same values in the same rows, and for no others."""
        return hashlib.sha1(self.rows.tobytes() + self.values.tobytes(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class MetricTable:
    """Rows of `metrics.jsonl` as columns. A row has a step, and all tokens and seconds up to its end.

    `generation` rises when a resumed run has written the file anew, so that rows read before may be gone.
    `problem`: why the rest of the file cannot be read; empty if it can.
    """

    path: Path
    steps: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, Column] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)
    generation: int = 0
    changed: float = 0.0
    """Time of the file's last change, in seconds since 1970; 0 without a file."""
    problem: str = ""
    _bell: AlarmBell = field(default_factory=AlarmBell)
    _offset: int = 0
    _size: int = 0
    _inode: int = 0
    _lines: int = 0

    def refresh(self, until: float = math.inf) -> bool:
        """Read the lines that were added since the last call, and return whether there were any. A line without its
        end is left for the next call, and so are most of the others once the clock (`time.monotonic`) says `until`.
        OSError if the file cannot be read."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return self._forget(0)
        changed = status.st_ino != self._inode or status.st_size < self._offset
        if changed:
            self._forget(status.st_ino)
        self.changed, self._size = status.st_mtime, status.st_size
        if status.st_size == self._offset or self.problem:
            return changed
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while time.monotonic() < until and self._take(file.readlines(_PIECE_BYTES)):
                changed = True
        return changed

    def share_read(self) -> float:
        """Return the share of the file that was read so far, which is 1 after a whole reading."""
        return self._offset / self._size if self._size and not self.problem else 1.0

    def ends(self, name: str) -> tuple[float, float] | None:
        """Return the first and the latest value of a metric; None if it was never measured."""
        return (values[0], values[-1]) if name in self.columns and (values := self.columns[name].values) else None

    def _forget(self, inode: int) -> bool:
        had_rows = bool(self.steps)
        if had_rows:
            self.generation += 1
        self.steps, self.tokens, self.seconds = array("q"), array("d"), array("d")
        self.columns, self.alarms, self._bell = {}, [], AlarmBell()
        self.problem, self._offset, self._inode, self._lines, self.changed = "", 0, inode, 0, 0.0
        return had_rows

    def _take(self, lines: list[bytes]) -> bool:
        """Add whole lines, and return whether there were any."""
        taken = 0
        for line in lines:
            if not line.endswith(b"\n") or self.problem:
                break
            self._lines += 1
            row = problem_or_row(line)
            if isinstance(row, str):
                self.problem = f"{self.path.name}:{self._lines} is not a row of metrics: {row}"
            elif self.steps and row["step"] <= self.steps[-1]:
                self.problem = f"{self.path.name}:{self._lines} is out of order, so the rest is not shown"
            else:
                self._add(row)
                taken += len(line)
        self._offset += taken
        return taken > 0

    def _add(self, row: Mapping[str, float]) -> None:
        place, step = len(self.steps), int(row["step"])
        self.steps.append(step)
        for sums, names in ((self.tokens, TOKENS[:1] if TOKENS[0] in row else TOKENS), (self.seconds, _SECONDS)):
            sums.append((sums[-1] if sums else 0.0) + sum(row.get(name, 0.0) for name in names))
        for name, value in row.items():
            if name == "step":
                continue
            column = self.columns.get(name) or self.columns.setdefault(name, Column())
            column.rows.append(place)
            column.values.append(value)
        self.alarms += self._bell.check(step, row)
