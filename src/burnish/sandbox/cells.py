"""One cell of a notebook: code that runs in a namespace, prints, and may end with an expression, whose value is shown.

This file runs where the code runs, also on servers without Burnish, so it imports nothing but the standard library.
Nothing here is protected from the code, which can only make up what it has printed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import os
import sys
import threading
import traceback
import types
from typing import Any

_NAME = "<cell {}>"
_VALUE_CHARACTERS = 2000
_TRACEBACK_LINES = 24
_TRACEBACK_CHARACTERS = 2000
TAIL_BYTES = 1 << 14
"""What a cell writes at most beyond its limit: marks, a value and a traceback."""


def namespace() -> dict[str, Any]:
    """Return the namespace for the cells of one session, which belongs to a new module `__main__`."""
    threading.excepthook = _show_of_thread
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return module.__dict__


def run_cell(source: str, number: int, space: dict[str, Any], output: int, limit: int) -> bool:
    """Run a cell, and write to the descriptor `output` what it prints, its value, and the end of its traceback.

    limit: bytes that it may print; the rest is counted and lost. Returns whether it ended without an exception.
    """
    screen = _Screen(output, limit)
    buffer = io.BufferedWriter(screen)  # type: ignore[type-var]
    stream = io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
    stream.reconfigure(line_buffering=True)  # what was printed before a cell hangs is seen
    sys.stdout = sys.__stdout__ = sys.stderr = sys.__stderr__ = stream  # type: ignore[misc]
    well, said = _run(source, _NAME.format(number), space)
    for printed in (sys.stdout, sys.stderr, stream):
        with contextlib.suppress(BaseException):  # boundary: the code may have put anything in their place
            printed.flush()
    screen.write_last(said)
    return well


def main(source: str, limit: int) -> int:
    """Run one cell as a whole program; its exit status."""
    return 0 if run_cell(source, 1, namespace(), 1, limit) else 1


class _Screen(io.RawIOBase):
    """A descriptor that takes a limited number of bytes. Further bytes are counted and lost, without an error."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._left = limit
        self._lost = 0
        self._last = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        given = bytes(data)
        kept = given[: self._left]
        self._left -= len(kept)
        self._lost += len(given) - len(kept)
        self._put(kept)
        return len(given)

    def write_last(self, text: str) -> None:
        """Write the text below the output, however long the output was."""
        marks = f"\n[{self._lost} more bytes were printed]\n" if self._lost else ""
        if text and not marks and self._last not in (b"", b"\n"):
            marks = "\n"
        self._put((marks + text).encode(errors="backslashreplace"))

    def _put(self, data: bytes) -> None:
        self._last = data[-1:] or self._last
        with contextlib.suppress(OSError):  # the code has closed the descriptor, or filled the file by other ways
            while data:
                data = data[os.write(self._descriptor, data) :]


def _run(source: str, name: str, space: dict[str, Any]) -> tuple[bool, str]:
    """Run a cell. Returns whether it ended without an exception, and what is to be shown below its output."""
    lines = [f"{line}\n" for line in source.split("\n")]  # each with its line end, or carets below it are misplaced
    linecache.cache[name] = (len(source), None, lines, name)  # tracebacks show them
    try:
        value = _value(source, name, space)
        text = "" if value is None else repr(value)
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return True, ""
        return False, f"SystemExit: {error.code!s:.200}"
    except BaseException as error:  # noqa: BLE001  boundary: whatever the code does
        return False, _end_of_traceback(error)
    more = len(text) - _VALUE_CHARACTERS
    return True, text if more <= 0 else f"{text[:_VALUE_CHARACTERS]}\n[{more} more characters of the value]"


def _value(source: str, name: str, space: dict[str, Any]) -> object:
    """Of the last statement, if it is an expression; None otherwise."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), space)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), space)


def _end_of_traceback(error: BaseException) -> str:
    """Its last lines, with the frames of cells only, and without the folder in which Python is."""
    try:
        seen = traceback.TracebackException.from_exception(error, compact=True)
        _leave_out_others(seen)
        lines = "".join(seen.format()).rstrip().splitlines()
    except BaseException:  # noqa: BLE001  boundary: parts of the exception are objects of the code
        lines = [type(error).__name__]
    text = "\n".join(["...", *lines[-_TRACEBACK_LINES:]] if len(lines) > _TRACEBACK_LINES else lines)
    for folder in {sys.prefix, sys.base_prefix} - {"/usr", "/usr/local"}:
        text = text.replace(f"{folder}/", "")
    return text if len(text) <= _TRACEBACK_CHARACTERS else f"... {text[-_TRACEBACK_CHARACTERS:]}"


def _leave_out_others(seen: traceback.TracebackException) -> None:
    """The frames that are not the model's, from this exception and all that it came from or consists of."""
    waiting = [seen]
    while waiting:
        one = waiting.pop()
        own = [frame for frame in one.stack if frame.filename.startswith("<cell ")]
        one.stack = traceback.StackSummary.from_list(own)
        parts = getattr(one, "exceptions", None) or ()  # Python 3.10 has no groups
        waiting += [inner for inner in (one.__cause__, one.__context__, *parts) if inner is not None]


def _show_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
        name = "a thread" if arguments.thread is None else arguments.thread.name
        print(f"Exception in {name}:\n{_end_of_traceback(arguments.exc_value)}", file=sys.stderr)  # noqa: T201
