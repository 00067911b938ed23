"""Calls of the Linux kernel that Python does not offer, by ctypes. Imported in the processes of the sandbox only."""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
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
    """Raises OSError."""
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    _checked(_library().prctl(option, *wide, *[ctypes.c_ulong(0)] * (4 - len(wide))))


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones. Raises OSError."""
    _checked(_library().unshare(flags))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Raises OSError."""
    texts = [text.encode() for text in (source, target, kind)]
    _checked(_library().mount(*texts, ctypes.c_ulong(flags), options.encode()), target)


def pivot_root(folder: str, old: str) -> None:
    """Raises OSError."""
    call(_PIVOT_ROOT[machine()], folder.encode(), old.encode())


def unmount(target: str) -> None:
    """Also while it is in use. Raises OSError."""
    _checked(_library().umount2(target.encode(), MNT_DETACH), target)


def drop_capabilities() -> None:
    """All of this thread's. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call(_CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing))


def _checked(result: int, what: str = "") -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)
    return int(result)
