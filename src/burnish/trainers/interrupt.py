"""First Ctrl-C: finish the step and save. Second Ctrl-C: stop now."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Set by the first SIGINT, SIGTERM or SIGHUP, read by the loop between steps."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@contextmanager
def graceful_stop(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Within this context the first signal only asks to stop; a second one raises KeyboardInterrupt at once. SIGHUP
    (the terminal is gone) counts, unless it is ignored, as under `nohup`.

    Outside of the main thread Python cannot install handlers: there signals stay as they are.
    """
    request = StopRequest()

    def tell(text: str) -> None:
        # The terminal may be gone, and the signal may have come in the middle of another line that is being printed.
        with suppress(OSError, RuntimeError):
            notify(text)

    def handle(number: int, frame: FrameType | None) -> None:
        if request.requested:
            tell("stopped; the same command goes on from the newest checkpoint")
            raise KeyboardInterrupt
        request.requested = True
        tell("stopping after this step, then saving (once more to stop now)")

    previous: dict[int, object] = {}
    try:
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: meant to go on
                previous[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: the caller keeps its own signal handling
        previous = {}
    try:
        yield request
    finally:
        for caught, handler in previous.items():
            signal.signal(caught, handler)  # type: ignore[arg-type]
