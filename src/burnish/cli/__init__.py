"""The command line: one function a command, each in its own file. Importing it loads no torch."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from burnish.errors import BurnishError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_DEBUG = "--debug"
_OTHERS_WRITE = 0o022
"""Taken from the mode of every file and folder that a command makes, whatever the umask was."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code.

    0: done; 1: a defect of Burnish (its traceback is shown) or a check that found something; 2: something that the
    user can put right, told in one message on standard error (`--debug` adds the traceback; that of an error which
    nobody foresaw is kept in a file of the system's temporary folder, whose path is shown); 130: interrupted.
    """
    _show_any_text()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in words
    words = [word for word in words if word != _DEBUG]
    os.umask(os.umask(_OTHERS_WRITE) | _OTHERS_WRITE)
    from burnish.cli.app import build_app

    try:
        _make_own_modules_importable()
        build_app()(args=words, prog_name="burnish")
    except SystemExit as stop:
        return _code(stop)
    except KeyboardInterrupt:
        _say("interrupted\n")
        return EXIT_INTERRUPTED
    except BurnishError as error:
        if debug:
            raise
        _show(error)
        return EXIT_BAD_INPUT
    return 0


def _make_own_modules_importable() -> None:
    """`package.module:function` in a run file may mean a module beside it: the folder of the command counts, last, so
    that nothing in it hides an installed package."""
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise BurnishError(
            f"the folder that the command was started in cannot be used: {error.strerror}",
            remedy="change to one that is there, then start again",
        ) from error
    if here not in sys.path:
        sys.path.append(here)


def _code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _show_any_text() -> None:
    """Names and values with characters that the terminal's encoding lacks (lone surrogates among them) are shown
    escaped: a message about a file must not fail on the file's name."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a descriptor that was changed or lost since the stream was made
                stream.reconfigure(errors="backslashreplace")


def _show(error: BurnishError) -> None:
    from rich.console import Console
    from rich.text import Text

    said = str(error)
    if error.unexpected:
        said += f"\n  the full traceback is in {_keep_traceback(error)}"
    shown = io.StringIO()
    console = Console(file=shown, soft_wrap=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())
    console.print(Text("error: ", style="bold red") + Text(_without_controls(said)))
    _say(shown.getvalue())


def _say(text: str) -> None:
    """Write to standard error, where there is one: a closed pipe or a full disk behind it must not change how the
    command ends."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)  # what is still buffered goes there when Python ends
        os.close(nowhere)


def _without_controls(text: str) -> str:
    """The text with control characters written as escapes, so that nothing in a file can steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" or c > "\x9f" else repr(c)[1:-1] for c in text)


def _keep_traceback(error: BurnishError) -> str:
    """Write the traceback to a file of its own in the temporary folder; its path, or why there is none."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="burnish-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError as failure:
        return f"no file ({failure.strerror}): add --debug to see it"
    return name
