"""Folders that only the user and root can change, by descriptor, and folders to work in that are swept after a kill.

A library runs in the process that loads it, so whoever can replace it, or a folder above it, could run code there. A
path is therefore followed one part at a time, each part is checked after it has been opened, and from then on used
through its descriptor: what somebody puts under its name later is not seen.
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
"""Of folders to work in."""
_PATH = os.O_PATH if sys.platform == "linux" else 0  # nothing is built elsewhere, but this file may be imported
_FOLDER = _PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = _PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40
"""As many as Linux follows in one path."""
_ATTEMPTS = 5


@contextmanager
def private_folder(path: Path) -> Iterator[int]:
    """The descriptor of an absolute path, whose missing parts are made for the user alone.

    Raises PermissionError where others than the user and root could change what is found there: they own the folder, a
    folder on the way or a link, or may write in one of them. A folder on the way may be sticky, as /tmp is, since
    others cannot replace what is not theirs there. Raises OSError where the folder cannot be had.
    """
    folder = _walked(path)
    try:
        yield folder
    finally:
        os.close(folder)


def check_owner(about: os.stat_result, *, may_be_sticky: bool = False) -> None:
    """Raises PermissionError where a file or folder could be changed by others than the user and root."""
    others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_sticky = may_be_sticky and about.st_mode & stat.S_ISVTX
    if about.st_uid not in (0, os.geteuid()) or (others_write and not is_sticky):
        raise PermissionError(errno.EACCES, "others may change it")


def _walked(path: Path) -> int:
    folder, links = os.open("/", _FOLDER), 0
    try:
        check_owner(os.fstat(folder), may_be_sticky=True)
        parts = list(reversed(path.parts[1:]))
        while parts:
            entry = _entry(folder, parts.pop())
            try:
                about = os.fstat(entry)
                target = _target(entry, about)
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


def _entry(folder: int, name: str) -> int:
    """What is called so there, without following a link; a new folder of the user's where there is nothing."""
    with suppress(FileNotFoundError):
        return os.open(name, _ENTRY, dir_fd=folder)
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, _ENTRY, dir_fd=folder)


def _target(entry: int, about: os.stat_result) -> PurePosixPath | None:
    """Where a link leads, None for a folder. A link has an owner, but no permissions of its own."""
    if stat.S_ISDIR(about.st_mode):
        return None
    if not stat.S_ISLNK(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if about.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EACCES, "others may change it")
    return PurePosixPath(os.readlink("", dir_fd=entry))


@contextmanager
def workplace(parent: int) -> Iterator[int]:
    """The descriptor of a new folder in this one, for the user alone, which is removed in the end.

    A killed process cannot remove its own. It is locked as long as its process lives, so that the next workplace in
    the same parent tells it from those in use and removes it. Raises OSError where no folder can be made.
    """
    _sweep(parent)
    name, folder = _claimed(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        os.close(folder)


def _claimed(parent: int) -> tuple[str, int]:
    """A new folder, locked, and its name. Another process may sweep it before it is locked; then there is another."""
    for _ in range(_ATTEMPTS):
        name = PREFIX + secrets.token_hex(8)
        os.mkdir(name, 0o700, dir_fd=parent)
        with suppress(FileNotFoundError):
            folder = os.open(name, _LISTED, dir_fd=parent)
            with suppress(OSError):  # a file system without locks: nothing is swept there either
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                check_owner(os.fstat(folder))
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except OSError:
                os.close(folder)
                raise
            return name, folder
    raise FileNotFoundError(errno.ENOENT, "each new folder was removed at once")


def _sweep(parent: int) -> None:
    """Remove the user's workplaces that no process holds."""
    try:
        listed = os.open(".", _LISTED, dir_fd=parent)
    except PermissionError:  # a folder that may be written but not read
        return
    try:
        names = [name for name in os.listdir(listed) if name.startswith(PREFIX)]
    finally:
        os.close(listed)
    for name in names:
        with suppress(OSError):  # in use, somebody else's, or swept by another process at this moment
            _remove_unlocked(parent, name)


def _remove_unlocked(parent: int, name: str) -> None:
    folder = os.open(name, _LISTED, dir_fd=parent)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
    finally:
        os.close(folder)
