"""The boundary to the user's files: any failure to read one becomes an error that names the file.

Whenever Burnish reads such a file (run file, data set, model folder, tokenizer, reward file, metrics), it does so
inside `reading`. Foreseeable problems get their own messages at that place; `reading` catches the rest.
"""

from __future__ import annotations

import errno
import json
import math
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from burnish.errors import BurnishError, DataError

FOLDER = "is a folder, not a file"
"""What `file_problem` returns for a folder. Some callers accept one."""
INDEX = "model.safetensors.index.json"
"""Names the files of a model's folder that hold its weights, where these are several."""

_FORESEEABLE = (OSError, UnicodeError, json.JSONDecodeError, RecursionError)
"""A file that may not be read, that is not text or JSON, or nested too deeply: the message says all there is."""
_MAX_REASON_CHARACTERS = 300
_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


@contextmanager
def reading(what: str, raises: type[BurnishError] = DataError, *, remedy: str = "fix or replace it") -> Iterator[None]:
    """Turn every exception except our own into `raises`; `what` names the file and what was being done with it.

    Except for what files are known to do, the error is marked as unexpected: the command line keeps its traceback.
    """
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:  # boundary: a user's file may make any library raise anything
        unexpected = not isinstance(error, _FORESEEABLE)
        raise raises(f"{what}: {reason_of(error)}", remedy=remedy, unexpected=unexpected) from error


def reason_of(error: BaseException) -> str:
    """`ValueError: its message`, without line breaks and cut to a few lines of a terminal."""
    without = "not enough memory" if type(error) is MemoryError else "no message given"
    message = " ".join(str(error).split()) or without
    reason = f"{type(error).__name__}: {message}"
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[:_MAX_REASON_CHARACTERS] + " ..."


def file_problem(path: Path) -> str | None:
    """Why `path` cannot be read as a regular file, as words to put after its name; None if it can.

    Pipes and devices count as problems, because reading one may never end.
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


def folder_problem(path: Path) -> str | None:
    """Why `path` is not a folder, as words to put after its name; None if it is one."""
    problem = file_problem(path)
    return None if problem == FOLDER else problem or "is a file, not a folder"


class UnreadableError(Exception):
    """A file cannot be used. The message is meant to follow the file's name."""


def strict_json(text: str) -> Any:
    """The value of a JSON text, as RFC 8259 has it: without NaN and Infinity, numbers that are read as infinity
    (`1e999`) included. ValueError for any other text, and for an object that has a name twice, since readers disagree
    on which one counts; JSONDecodeError for malformed text, RecursionError for extreme nesting."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_unique_keys)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number (write null for a missing one)")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits:.60} is too large for a float")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return values


def read_json(path: Path) -> Any:
    """The content of one of our own JSON files.

    Raises UnreadableError if there is anything else in its place: no file, a pipe or device (never waited for), bytes
    that are not text, or text that is not JSON.
    """
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
            return "is a broken link"
        case errno.ENOENT:
            return "does not exist"
        case errno.ENOTDIR:
            return "does not exist: part of its path is a file, not a folder"
        case errno.ELOOP:
            return "is a link that points back to itself"
        case errno.ENAMETOOLONG:
            return "has a name that is too long for a file"
        case _:
            return f"cannot be accessed: {error.strerror}"


def read_at_most(stream: BufferedIOBase, max_bytes: int) -> bytearray:
    """The whole stream, or slightly more than `max_bytes` of it if it is longer, so that callers can tell.

    Raises whatever the stream raises.
    """
    content = bytearray()
    while len(content) <= max_bytes and (piece := stream.read(_PIECE_BYTES)):
        content += piece
    return content


_PIECE_BYTES = 1 << 20


def files_of_weights(folder: Path) -> list[Path]:
    """The safetensors files that loading reads: the usual one, or the files that an index names. Some folders have all
    weights a second time under another name."""
    index, whole = folder / INDEX, folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    if index.is_file():
        try:
            return sorted(
                {folder / name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # loading reports it
    return sorted(folder.glob("*.safetensors"))
