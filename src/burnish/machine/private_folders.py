"""Folders that only the user and root can change, and temporary folders that are cleaned up even after a kill.

A library runs in the process that loads it. So whoever can replace the library, or a folder above it, can run code in
that process. Therefore a path is followed one part at a time. Each part is opened, then checked, and from then on only
used through its descriptor, so that replacing it under the same name has no effect.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

PREFIX = "burnish-kernels-"
"""Prefix of the names of temporary folders."""
_PATH = os.O_PATH if sys.platform == "linux" else 0  # nothing is built elsewhere, but the module is imported
_FOLDER = _PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = _PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""Number of links that Linux follows in one path."""
_ATTEMPTS = 5


@contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """Open the folder at an absolute path; yields its descriptor. Missing parts are created for the user alone.

    Raises PermissionError if anyone except the user and root could change its contents, because they own the folder, a
    parent folder or a link, or may write to one of them. Parent folders may be writable if they are sticky like /tmp,
    because nobody can replace files of others there. Raises OSError if the folder cannot be opened.
    """
    folder = _walk(path)
    try:
        yield folder
    finally:
        os.close(folder)


def check_owner(about: os.stat_result, *, may_be_sticky: bool = False) -> None:
    """Raise PermissionError if anyone except the user and root could change the file or folder."""
    others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_sticky = may_be_sticky and about.st_mode & stat.S_ISVTX
    if about.st_uid not in (0, os.geteuid()) or (others_write and not is_sticky):
        raise PermissionError(errno.EACCES, "others may change it")


def _walk(path: Path) -> int:
    folder, links = os.open("/", _FOLDER), 0
    try:
        check_owner(os.fstat(folder), may_be_sticky=True)
        parts = list(reversed(path.parts[1:]))
        while parts:
            entry = _open_entry(folder, parts.pop())
            try:
                about = os.fstat(entry)
                target = _link_target(entry, about)
                if target is None:
                    check_owner(about, may_be_sticky=bool(parts))
                    folder, entry = entry, folder
                else:
                    links += 1
                    parts += reversed([part for part in target.parts if part != target.anchor])
                    if target.is_absolute():
                        os.close(folder)
                        folder = os.open("/", _FOLDER)
            finally:
                os.close(entry)
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    except BaseException:
        os.close(folder)
        raise
    return folder


def _open_entry(folder: int, name: str) -> int:
    """Open the entry of this name without following a link. If there is none, create a folder for the user alone."""
    with suppress(FileNotFoundError):
        return os.open(name, _ENTRY, dir_fd=folder)
    with suppress(FileExistsError):  # another process has just made it
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _ENTRY, dir_fd=folder)


def _link_target(entry: int, about: os.stat_result) -> PurePosixPath | None:
    """The target of a link, None for a folder. Only a link's owner is checked, because it has no permissions."""
    if stat.S_ISDIR(about.st_mode):
        return None
    if not stat.S_ISLNK(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if about.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EACCES, "others may change it")
    return PurePosixPath(os.readlink("", dir_fd=entry))


@contextmanager
def temporary_folder(parent: int) -> Iterator[int]:
    """Create a temporary folder in `parent`, for the user alone; yields its descriptor and removes it at the end.

    A killed process cannot remove its folder. But a folder stays locked while its process lives, so the next process
    that creates one in the same parent can recognise and remove abandoned ones. OSError if no folder can be created.
    """
    _sweep(parent)
    name, folder = _claim(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        os.close(folder)


def _claim(parent: int) -> tuple[str, int]:
    """Create and lock a folder; returns its name and descriptor. Tries again if it is removed before it is locked."""
    for _ in range(_ATTEMPTS):
        name = PREFIX + secrets.token_hex(8)
        os.mkdir(name, 0o700, dir_fd=parent)
        with suppress(FileNotFoundError):
            folder = os.open(name, _LISTED, dir_fd=parent)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process is sweeping it away
                os.close(folder)
                continue
            except OSError:  # a file system without locks, where `_sweep` removes nothing either
                pass
            try:
                check_owner(os.fstat(folder))
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except OSError:
                os.close(folder)
                raise
            return name, folder
    raise FileNotFoundError(errno.ENOENT, "each new folder was removed immediately")


def _sweep(parent: int) -> None:
    """Remove the user's temporary folders that no process holds."""
    try:
        listed = os.open(".", _LISTED, dir_fd=parent)
    except PermissionError:  # the folder is writable but not readable
        return
    try:
        names = [name for name in os.listdir(listed) if name.startswith(PREFIX)]
    finally:
        os.close(listed)
    for name in names:
        with suppress(OSError):  # in use, someone else's, or being removed by another process
            _remove_unlocked(parent, name)


def _remove_unlocked(parent: int, name: str) -> None:
    folder = os.open(name, _LISTED, dir_fd=parent)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    finally:
        os.close(folder)
