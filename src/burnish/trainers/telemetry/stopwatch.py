"""Time of a step, by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from burnish.types import Metric, Reduction


class Stopwatch:
    """Wall-clock seconds per phase of one step; `announce` gets the name of each phase as it begins, "" after it."""

    def __init__(self, announce: Callable[[str], None] = lambda name: None) -> None:
        self._seconds: dict[str, float] = {}
        self._announce = announce
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._announce(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
            self._announce("")

    def seconds(self, name: str) -> float:
        return self._seconds.get(name, 0.0)

    def phases(self) -> dict[str, Metric]:
        """Return the seconds of each phase."""
        return {f"time/{name}_seconds": Metric(Reduction.SUM, value) for name, value in self._seconds.items()}

    def metrics(self) -> dict[str, Metric]:
        """Return the seconds of each phase, and since the stopwatch was made."""
        return self.phases() | {"time/step_seconds": Metric(Reduction.SUM, time.perf_counter() - self._started)}
