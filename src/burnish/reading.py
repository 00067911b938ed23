"""The boundary to files that are the user's: whatever goes wrong while one is read becomes an error that names it.

Every place where Burnish begins to read such a file (run file, data set, model folder, tokenizer, reward file, metrics)
stands inside `reading`. What can be foreseen is refused there in its own words; `reading` is for the rest.
"""

from __future__ import annotations

import errno
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from burnish.errors import BurnishError, DataError

FOLDER = "is a folder, not a file"
"""What `file_problem` says of a folder, which is no problem everywhere."""

_MAX_REASON_CHARACTERS = 300
_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


@contextmanager
def reading(what: str, raises: type[BurnishError] = DataError, *, remedy: str = "mend or replace it") -> Iterator[None]:
    """Turn every exception but our own into `raises`, which names `what` (a file and what was being done with it).

    Such an error is marked as unexpected, so that the command line keeps its traceback in a file.
    """
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:  # boundary: a user's file may make any library raise anything
        raise raises(f"{what}: {reason_of(error)}", remedy=remedy, unexpected=True) from error


def reason_of(error: BaseException) -> str:
    """`ValueError: what it says` on one line, never longer than a few lines of a terminal."""
    said = " ".join(str(error).split()) or _SILENT.get(type(error), "it says no more")
    reason = f"{type(error).__name__}: {said}"
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[:_MAX_REASON_CHARACTERS] + " ..."


_SILENT: dict[type[BaseException], str] = {MemoryError: "there is not enough memory"}


def file_problem(path: Path) -> str | None:
    """What keeps `path` from being read as a regular file, in words that follow its name; None when nothing does.

    Pipes and devices count as problems: reading one may never end.
    """
    try:
        mode = path.stat().st_mode
    except ValueError:
        return "has a NUL character in its name"
    except OSError as error:
        return _stat_problem(path, error)
    if stat.S_ISREG(mode):
        return None
    kind = next((word for is_kind, word in _KINDS if is_kind(mode)), "special file")
    return f"is a {kind}, not a file"


class UnreadableError(Exception):
    """A file that cannot be used; the message follows its name."""


def read_json(path: Path) -> Any:
    """The content of one of our own files. UnreadableError for whatever may stand there instead: nothing, a pipe or a
    device, which must not be waited for, bytes that are no text, a text that is no JSON."""
    problem = file_problem(path)
    if problem is not None:
        raise UnreadableError(problem)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"cannot be read as JSON: {reason_of(error)}") from error


def _stat_problem(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT if path.is_symlink():
            return "is a link to nothing"
        case errno.ENOENT:
            return "does not exist"
        case errno.ENOTDIR:
            return "does not exist: a part of its path is a file, not a folder"
        case errno.ELOOP:
            return "is a link that leads back to itself"
        case errno.ENAMETOOLONG:
            return "has a name that is too long for any file"
        case _:
            return f"cannot be looked at: {error.strerror}"


def read_at_most(stream: BufferedIOBase, max_bytes: int) -> bytearray:
    """All that is in the stream, or a little more than `max_bytes` where it has more (then it is too long). Raises
    whatever the stream raises."""
    content = bytearray()
    while len(content) <= max_bytes and (piece := stream.read(_PIECE_BYTES)):
        content += piece
    return content


_PIECE_BYTES = 1 << 20
