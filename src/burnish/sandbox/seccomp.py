"""System calls that a candidate may make: as many as Python and NumPy need to compute. All others fail with EPERM.

Landlock decides which files may be opened. Not allowed at all: starting programs or processes, sockets, signals to
others, changing limits, mounts, tracing, asynchronous I/O.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from burnish.sandbox.kernel import PR_SET_SECCOMP, machine, prctl

_FILTER_MODE = 2
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_KILL = 0x80000000
_THREAD = 0x00010F00  # memory, files, descriptors and handlers shared, in the same group
_NAMESPACES = 0x7E020000
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name, number on x86_64, number on aarch64; None where a machine lacks the call.
_TABLE = """
read 0 63|write 1 64|close 3 57|fstat 5 80|lseek 8 62|mmap 9 222|mprotect 10 226|munmap 11 215|brk 12 214
rt_sigaction 13 134|rt_sigprocmask 14 135|rt_sigreturn 15 139|pread64 17 67|pwrite64 18 68|readv 19 65
writev 20 66|sched_yield 24 124|mremap 25 216|madvise 28 233|dup 32 23|nanosleep 35 101|getpid 39 172|exit 60 93
uname 63 160|fsync 74 82|ftruncate 77 46|getcwd 79 17|chdir 80 49|gettimeofday 96 169|getrusage 98 165
sysinfo 99 179|times 100 153|getuid 102 174|getgid 104 176|geteuid 107 175|getegid 108 177|getppid 110 173
sigaltstack 131 132|gettid 186 178|futex 202 98|sched_getaffinity 204 123|getdents64 217 61|set_tid_address 218 96
restart_syscall 219 128|clock_gettime 228 113|clock_getres 229 114|clock_nanosleep 230 115|exit_group 231 94
openat 257 56|mkdirat 258 34|newfstatat 262 79|unlinkat 263 35|renameat 264 38|readlinkat 267 78|faccessat 269 48
pselect6 270 72|ppoll 271 73|set_robust_list 273 99|dup3 292 24|getrandom 318 278|membarrier 324 283|statx 332 291
rseq 334 293|faccessat2 439 439|getrlimit 97 163|sched_getparam 143 121|sched_getscheduler 145 120
close_range 436 436|pipe2 293 59|renameat2 316 276|get_mempolicy 239 236|mincore 27 232
open 2 -|stat 4 -|lstat 6 -|poll 7 -|access 21 -|select 23 -|dup2 33 -|rename 82 -|mkdir 83 -|rmdir 84 -|unlink 87 -
readlink 89 -|epoll_create1 291 20|epoll_ctl 233 21|epoll_pwait 281 22|epoll_wait 232 -|eventfd2 290 19|recvfrom 45 207
getdents 78 -|time 201 -|pipe 22 -|arch_prctl 158 -
"""
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_IOCTL = {"x86_64": 16, "aarch64": 29}
_HARMLESS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # of terminals and flags; others can send signals
_FCNTL = {"x86_64": 72, "aarch64": 25}
_DUPLICATE_AND_FLAGS = (0, 1, 2, 3, 4, 1030)  # not F_SETOWN, which makes the kernel send signals to others
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_SENDTO = {"x86_64": 44, "aarch64": 206}
_AF_UNIX = 1
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_TGKILL = {"x86_64": 234, "aarch64": 131}


def allowed(of: str) -> dict[str, int]:
    """Numbers of the calls that always may be made, by name."""
    column = 1 if of == "x86_64" else 2
    rows = [row.split() for line in _TABLE.strip().splitlines() for row in line.split("|")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def program(of: str, pid: int, *, threads: bool) -> bytes:
    """The filter for a process with this id, as instructions of classic BPF."""
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURES[of]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),  # the other numbers of the same machine
        (_RETURN, 0, 0, _KILL),
    ]
    for number in sorted(set(allowed(of).values())):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    # C libraries go back to clone, whose flags can be looked at.
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    if threads:
        lines += _if_masked(_CLONE[of], _THREAD | _NAMESPACES, _THREAD)
    lines += _if_call(_IOCTL[of], 1, _HARMLESS)
    lines += _if_call(_FCNTL[of], 1, _DUPLICATE_AND_FLAGS)
    # What event loops wake themselves with, which leads nowhere else.
    lines += _if_call(_SOCKETPAIR[of], 0, (_AF_UNIX,))
    lines += _if_call(_SENDTO[of], 4, (0,))
    lines += _if_call(_PRLIMIT[of], 2, (0,))  # reads limits and sets none
    lines += _if_call(_TGKILL[of], 0, (pid,))  # a process that ends itself
    lines += [(_RETURN, 0, 0, _FAIL | errno.EPERM)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _if_call(number: int, argument: int, values: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Allow this call if the argument is one of the values: its lower half, and the upper one must be 0."""
    at, count = _ARGUMENTS_AT + 8 * argument, len(values)
    return [
        (_EQUAL, 0, count + 5, number),
        (_LOAD, 0, 0, at + 4),
        (_EQUAL, 0, count + 1, 0),
        (_LOAD, 0, 0, at),
        *((_EQUAL, count - index, 0, value) for index, value in enumerate(values)),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _if_masked(number: int, mask: int, value: int) -> list[tuple[int, int, int, int]]:
    """Allow this call if its first argument has these of the bits of a mask; its upper half must be 0."""
    return [
        (_EQUAL, 0, 7, number),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 4),
        (_EQUAL, 0, 4, 0),
        (_LOAD, 0, 0, _ARGUMENTS_AT),
        (_AND, 0, 0, mask),
        (_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | errno.EPERM),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def restrict(*, threads: bool) -> None:
    """From now on this process can make these calls only. Needs no_new_privs. Raises OSError, and KeyError on a machine
    without a table."""
    code = program(machine(), os.getpid(), threads=threads)
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p).value)
    prctl(PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(filters))
