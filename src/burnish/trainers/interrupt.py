"""First Ctrl-C: finish the step and save. Second Ctrl-C: stop now. A program that trains can ask for the same, and
watch: its functions are called after each step. Requests in a run's folder are heeded between two steps.

The command line watches nothing. A watch applies to the trainings that a program starts in the same context.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from burnish.observability.control import REQUESTS, is_asked, take
from burnish.outside.supervise import STOP_SIGNALS

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
    """Functions that a run calls after each step, and their means to stop it."""

    watchers: tuple[Watcher, ...] = ()
    stop: StopRequest = field(default_factory=StopRequest)


_WATCH: ContextVar[Watch | None] = ContextVar("burnish_watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Let `watch` observe the trainings within this context."""
    before = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(before)


def present_watch() -> Watch:
    """The watch of this context, or a new one that does nothing."""
    return _WATCH.get() or Watch()


_ECHO_SECONDS = 0.25
"""`timeout` sends SIGTERM to its child and then to the process group, and an exiting shell passes SIGHUP on. A signal
this soon after the first is therefore taken for the same one. Not SIGINT: every press of Ctrl-C is meant."""


@contextmanager
def graceful_stop(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Within this context the first signal only asks to stop; a second one raises KeyboardInterrupt at once. SIGHUP
    (the terminal is gone) counts, unless it is ignored, as under `nohup`.

    Python can install handlers only in the main thread; in any other, signals are left alone. If the program that
    trains has its own stop request (`watching`), that one is used.
    """
    request = present_watch().stop
    first_seconds = -math.inf

    def tell(text: str) -> None:
        # The terminal may be gone, or the signal may have interrupted another line being printed.
        with suppress(OSError, RuntimeError):
            notify(text)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_seconds
        if request.requested:
            if number != signal.SIGINT and time.monotonic() - first_seconds < _ECHO_SECONDS:
                return
            tell("stopped; the same command continues from the newest checkpoint")
            raise KeyboardInterrupt
        request.requested, first_seconds = True, time.monotonic()
        tell("stopping after this step, then saving (once more to stop now)")

    previous: dict[int, object] = {}
    try:
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: meant to keep running
                previous[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: the caller keeps its own signal handling
        previous = {}
    try:
        yield request
    finally:
        for caught, handler in previous.items():
            signal.signal(caught, handler)  # type: ignore[arg-type]


_LOOK_SECONDS = 0.2


def forget_requests(run_dir: Path) -> None:
    """Withdraw what was asked of an earlier start of the run."""
    for request in REQUESTS:
        take(run_dir, request)


def heed_requests(
    run_dir: Path, stop: StopRequest, save: Callable[[], object], say: Callable[[str], None]
) -> StopRequest:
    """Save if asked to, wait as long as a pause is asked for, and return `stop`, which may have been requested."""
    waiting = False
    while not stop:
        if take(run_dir, "save"):
            save()
        if take(run_dir, "stop"):
            stop.requested = True
        elif not is_asked(run_dir, "pause"):
            break
        elif not waiting:
            waiting = True
            say(f"paused; remove {run_dir}/control/pause to go on")
        time.sleep(_LOOK_SECONDS if waiting else 0)
    return stop
