"""Files that a process may still open: by Landlock, which needs no privilege."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from burnish.sandbox.kernel import call

COVERS_TRUNCATION = 3
"""The first version that keeps a file which may be read from being emptied."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every machine
_ASK_VERSION = 1
_PATH_BENEATH = 1

_READ_FILE = 1 << 2
_READ = _READ_FILE | 1 << 3  # and folders
_WRITE_FILE = 1 << 1
_EVERYTHING_ON_FILES = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 5: 1 << 16}
"""By version: the first bit that it does not know."""
_NET = 0b11  # bind and connect, TCP
_SCOPED = 0b11  # abstract sockets, signals


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Of the kernel's Landlock; 0 if it has none, or it is turned off."""
    try:
        return call(_CREATE, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[str], writable: Sequence[str]) -> None:
    """From now on this thread, and what it starts, reads only beneath `readable`, and reads and writes only beneath
    `writable`. Paths that do not exist are left out. Needs no_new_privs. Raises OSError."""
    known = version()
    files = next(bit for first, bit in sorted(_EVERYTHING_ON_FILES.items(), reverse=True) if known >= first) - 1
    rules = _Ruleset(files, _NET if known >= 4 else 0, _SCOPED if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    ruleset = call(_CREATE, ctypes.byref(rules), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ)
        for path in writable:
            _allow(ruleset, path, files if os.path.isdir(path) else _READ_FILE | _WRITE_FILE)
        call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = access if os.path.isdir(path) else access & (_READ_FILE | _WRITE_FILE)
        beneath = _Beneath(rights, parent)
        call(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(parent)
