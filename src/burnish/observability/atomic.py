"""Write files atomically: under another name, forced to disk, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.errors import BurnishError

PRIVATE = 0o600
"""Mode of files of a run that may reveal something about its owner."""


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file so that a kill at any time leaves the old content or the new one, never a part of it.

    Only the owner may read the file, whatever the umask, because it can contain prompts, paths and command lines.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        # O_EXCL fails for an existing file, so a link under this name is never followed.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        # UTF-8 cannot hold a lone surrogate from the user's data. backslashreplace writes it as an escape of JSON.
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Force a finished file to disk, or the entries of a folder, so that a rename in it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(doing: str, folder: Path, raises: type[BurnishError] = BurnishError) -> Iterator[None]:
    """Turn OSError into `raises`, which says what cannot be done (`doing`: "write to X") below `folder`, and why."""
    try:
        yield
    except OSError as error:
        raise raises(f"cannot {doing}: {error.strerror}", remedy=disk_remedy(error, folder)) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn OSError about a file that the user has named, outside any run, into an error that asks for another file."""
    try:
        yield
    except OSError as error:
        create = f"create the folder {path.parent}, or " if isinstance(error, FileNotFoundError) else ""
        raise BurnishError(f"cannot write {path}: {error.strerror}", remedy=f"{create}name another file") from error


def disk_remedy(error: OSError, folder: Path) -> str:
    """One sentence that says what to do about a failed write below `folder`."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"free space on the disk of {folder} or set `output` to another disk, then start again: it resumes"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"make {folder} writable or set `output` to a folder that is, then start again: it resumes"
        case errno.EMFILE | errno.ENFILE:
            return "raise the limit of open files (ulimit -n), then start again: it resumes"
        case errno.ENOENT:
            return f"create the folder {folder}, then start again"
        case errno.EISDIR | errno.ENOTDIR | errno.EEXIST:
            return f"something else is in its place: move it out of {folder}, then start again: it resumes"
        case _:
            return f"check the disk of {folder}, then start again: it resumes from the newest complete checkpoint"
