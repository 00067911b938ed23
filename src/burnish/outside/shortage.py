"""Errors of a machine that has run out of memory, open files, threads or processes.

Every library has its own exception for it. All of them become one line that says what to lower or to raise.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from burnish.errors import BurnishError

FEWER = (
    "ask for fewer processes (cluster, scoring.workers), conversations (max_open) or cluster.threads, end other "
    "programs, or raise the limits of processes, which counts threads, and of open files (ulimit -u, ulimit -n)"
)
_LESS_MEMORY = (
    "lower optimization.tokens_per_microbatch or the number of sequences sampled at once (rollout.max_batch_rows), "
    "free memory, or use a smaller model; `burnish plan` estimates what a run needs"
)
_MEMORY = ("can't allocate memory", "out of memory", "cannot allocate memory", "bad_alloc")
_THREADS = ("can't start new thread", "resource temporarily unavailable", "pthread_create")
_FILES = ("too many open files",)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means out of memory: Python's MemoryError, ENOMEM, or a message of torch's
    allocators."""
    return isinstance(error, MemoryError) or _is(error, (errno.ENOMEM,), _MEMORY)


def shortage(error: BaseException) -> BurnishError | None:
    """The error to show for one that means that something ran out; None for any other."""
    if is_out_of_memory(error):
        return _error("memory ran out", error, _LESS_MEMORY)
    if _is(error, (errno.EMFILE, errno.ENFILE), _FILES):
        return _error("no more files or connections can be opened", error, FEWER)
    if _is(error, (errno.EAGAIN,), _THREADS):
        return _error("no more threads or processes can be started", error, FEWER)
    return None


@contextmanager
def naming_shortages() -> Iterator[None]:
    """Around a whole command: see `shortage`."""
    try:
        yield
    except BurnishError:
        raise
    except Exception as error:  # boundary: each library has its own exception for it
        if (named := shortage(error)) is None:
            raise
        raise named from error


def _is(error: BaseException, numbers: tuple[int, ...], words: tuple[str, ...]) -> bool:
    if isinstance(error, OSError):
        return error.errno in numbers
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _error(what: str, error: BaseException, remedy: str) -> BurnishError:
    detail = str(error).strip().partition("\n")[0]
    return BurnishError(f"{what}{f': {detail}' if detail else ''}", remedy=remedy)
