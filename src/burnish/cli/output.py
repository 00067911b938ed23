"""Where a training command prints: a reader who leaves must not end the training."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class LastingOutput:
    """Standard output that can be lost: a closed pipe (`burnish rl run.yaml | head`), a terminal that is gone, a full
    disk behind a redirection. From then on what is printed goes nowhere, and one line on standard error says so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _lose(self, error: OSError) -> None:
        _turn_to_nowhere(self._stream.fileno())
        try:
            sys.stderr.write(f"standard output is lost ({error.strerror}); the run goes on without it\n")
        except OSError:  # the same terminal, most likely
            return


class LastingErrors(io.TextIOWrapper):
    """Standard error that can be lost in the same way, without a word, as there is nowhere left to say it."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            _turn_to_nowhere(self.fileno())
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _turn_to_nowhere(self.fileno())


def _turn_to_nowhere(descriptor: int) -> None:
    """So that what is still buffered, and the exit of Python, find the descriptor open."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def training_console() -> Console:
    """The console of a command that trains."""
    from rich.console import Console

    open_standard_streams()
    return Console(file=LastingOutput(sys.stdout))  # type: ignore[arg-type]


def open_standard_streams() -> None:
    """Give a process that was started without standard streams (`>&-`) ones that lead nowhere: the next files it opens
    would otherwise get their numbers, and what some library prints would land in them."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    for number in range(3):
        os.set_inheritable(number, True)  # reward workers print there as well
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:  # and not what a test or a notebook has put there
        unbuffered = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115  for as long as the process lives
        sys.stderr = LastingErrors(
            unbuffered, encoding=sys.stderr.encoding, errors="backslashreplace", write_through=True
        )
