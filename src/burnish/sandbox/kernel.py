"""Calls of the Linux kernel that Python does not offer, by ctypes, and Landlock, which says what files may be opened.
Imported in the processes of the sandbox only."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_CAPABILITY_VERSION_3 = 0x20080522
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CLOSE_RANGE = 436  # on all machines
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

COVERS_TRUNCATION = 3
"""The first version that can keep a readable file from being emptied."""
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


def machine() -> str:
    """The name by which tables of system calls are kept: `x86_64`, `aarch64`, or another one that has none."""
    return os.uname().machine


def _library() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError("not a Linux system")
    return ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A system call by its number. Raises OSError."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_library().syscall(ctypes.c_long(number), *wide))


def close_from(first: int) -> None:
    """Close this descriptor and all above it. (Where Python was built for an old C library, `os.closerange` calls
    `close` once for every number in the range.)"""
    try:
        call(_CLOSE_RANGE, first, 0xFFFFFFFF, 0)
    except OSError:  # before Linux 5.9
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def prctl(option: int, *values: object) -> None:
    """Set an attribute of this process. Raises OSError."""
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    _checked(_library().prctl(option, *wide, *[ctypes.c_ulong(0)] * (4 - len(wide))))


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones. Raises OSError."""
    _checked(_library().unshare(flags))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount `source` at `target`. Raises OSError."""
    texts = [text.encode() for text in (source, target, kind)]
    _checked(_library().mount(*texts, ctypes.c_ulong(flags), options.encode()), target)


def pivot_root(folder: str, old: str) -> None:
    """Make `folder` the root, and put the earlier root at `old`. Raises OSError."""
    call(_PIVOT_ROOT[machine()], folder.encode(), old.encode())


def unmount(target: str) -> None:
    """Unmount `target`, also while it is in use. Raises OSError."""
    _checked(_library().umount2(target.encode(), MNT_DETACH), target)


def drop_capabilities() -> None:
    """Drop all of this thread's capabilities. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call(_CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing))


def _checked(result: int, what: str = "") -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)
    return int(result)


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
    """Of the kernel's Landlock; 0 if it has none, or it is turned off."""
    try:
        return call(_CREATE, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """From now on this thread, and what it starts, reads only beneath `readable`, and reads and writes only beneath
    `writable`: by Landlock, which needs no privilege but no_new_privs. Paths that do not exist are left out. Raises
    OSError."""
    known = landlock_version()
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
