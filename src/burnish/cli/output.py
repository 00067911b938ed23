"""Output of training commands, which must not end the training when nobody reads it any more."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class LastingOutput:
    """Standard output that survives write errors: a closed pipe (`burnish rl run.yaml | head`), a closed terminal, or a
    full disk behind a redirection.

    After such an error, output is discarded, and one line on standard error says so.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _discard(self, error: OSError) -> None:
        redirect_to_null(self._stream.fileno())
        try:
            sys.stderr.write(f"standard output is lost ({error.strerror}); the run continues without it\n")
        except OSError:  # most likely the same terminal
            return


class LastingErrors(io.TextIOWrapper):
    """Standard error that survives write errors in the same way, silently, because there is nowhere left to report
    them."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            redirect_to_null(self.fileno())
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            redirect_to_null(self.fileno())


def redirect_to_null(descriptor: int) -> None:
    """Discard the output of a descriptor, but keep it open, because buffers are still flushed when Python ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def training_console() -> Console:
    """The console of a command that trains."""
    from rich.console import Console

    open_standard_streams()
    return Console(file=LastingOutput(sys.stdout))  # type: ignore[arg-type]


def open_standard_streams() -> None:
    """Open standard streams that are closed (`>&-`) to /dev/null.

    Otherwise the next files that the process opens would get their descriptors, and what a library prints would end up
    in those files.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    for number in range(3):
        os.set_inheritable(number, True)  # reward workers print there too
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:  # not what a test or notebook has put there
        unbuffered = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115  open as long as the process lives
        sys.stderr = LastingErrors(
            unbuffered, encoding=sys.stderr.encoding, errors="backslashreplace", write_through=True
        )
