"""The command line: one function per command, each in its own file. Importing it does not load torch."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from burnish.cli.output import redirect_to_null
from burnish.errors import BurnishError
from burnish.machine.memory import uncollected
from burnish.outside.shortage import shortage

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
_DEBUG = "--debug"
_OTHERS_WRITE = 0o022
"""Write permissions of others, which files and folders made by a command never get, whatever the umask."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: success. 1: a bug in Burnish (its traceback is shown), or `burnish check`, `verify` or `bisect` found something.
    2: an error that the user can fix, shown as one message on standard error. `--debug` adds the traceback; if the
    cause was unforeseen, the traceback is kept in a temporary file and the message names it. 130: interrupted.
    """
    _show_any_text()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _DEBUG in words
    words = [word for word in words if word != _DEBUG]
    os.umask(os.umask(_OTHERS_WRITE) | _OTHERS_WRITE)  # twice, because the old mask can only be read by setting one
    with uncollected():
        from burnish.cli.app import build_app

    try:
        _make_own_modules_importable()
        build_app()(args=words, prog_name="burnish")
    except SystemExit as stop:
        return _code(stop)
    except KeyboardInterrupt:
        _write_error("interrupted\n")
        return EXIT_INTERRUPTED
    except BurnishError as error:
        if debug:
            raise
        _show(error)
        return EXIT_BAD_INPUT
    except Exception as error:  # boundary: whatever the machine has no more of, wherever it is noticed
        named = shortage(error)
        if named is None or debug:
            raise
        _show(named)
        return EXIT_BAD_INPUT
    return 0


def _make_own_modules_importable() -> None:
    """Add the current folder to the import path, for `package.module:function` in run files.

    It is added at the end, so that nothing in it hides an installed package.
    """
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise BurnishError(
            f"the current folder cannot be used: {error.strerror}",
            remedy="change to a folder that exists, then start again",
        ) from error
    if here not in sys.path:
        sys.path.append(here)


def _code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _show_any_text() -> None:
    """Show characters that the terminal cannot encode, including lone surrogates, as escapes.

    Otherwise a message about a file could fail because of the file's name.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # the descriptor was changed or closed after the stream was made
                stream.reconfigure(errors="backslashreplace")


def _show(error: BurnishError) -> None:
    from rich.console import Console
    from rich.text import Text

    from burnish.config.secrets import hidden

    message = hidden(str(error))
    if error.unexpected:
        message += f"\n  the full traceback is in {_keep_traceback(error)}"
    shown = io.StringIO()
    console = Console(file=shown, soft_wrap=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())
    console.print(Text("error: ", style="bold red") + Text(_without_controls(message)))
    _write_error(shown.getvalue())


def _write_error(text: str) -> None:
    """Write to standard error, if there is one. A closed pipe or full disk behind it must not change the exit code."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        redirect_to_null(2)


def _without_controls(text: str) -> str:
    """The text with control characters as escapes, so that the content of a file cannot control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" or c > "\x9f" else repr(c)[1:-1] for c in text)


def _keep_traceback(error: BurnishError) -> str:
    """Write the traceback to a temporary file. Returns its path, or why there is none."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="burnish-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError as failure:
        return f"no file ({failure.strerror}): add --debug to see it"
    return name
