"""A program that trains can watch: its functions are called after each step, and it can ask the run to stop.

The command line does not use this. A watch applies to the trainings that a program starts in the same context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

Watcher = Callable[[int, Mapping[str, float]], None]
"""Called with a step and its metrics once they are written. If it raises, the run ends and saves finished steps."""


class StopRequest:
    """Read by the loop between steps; set by the first SIGINT, SIGTERM or SIGHUP, or by the program that trains."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is called, and how they can stop the run."""

    watchers: tuple[Watcher, ...] = ()
    stop: StopRequest = field(default_factory=StopRequest)


_WATCH: ContextVar[Watch | None] = ContextVar("burnish_watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Trainings within this context are watched."""
    before = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(before)


def present_watch() -> Watch:
    """The watch of this context, or a new one that does nothing."""
    return _WATCH.get() or Watch()
