"""One process writes to a run folder at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_remedy

_held: set[Path] = set()


class RunLock:
    """Holds `run.lock` for as long as the process lives; the operating system lets go of it at any kind of death.

    A POSIX record lock: it is not inherited by forked reward workers, so a worker that outlives a killed run does not
    keep the folder locked. What the file says (process id, host) is for people; only the lock itself counts, so the
    file of a dead process is stale by nature.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = (run_dir / "run.lock").resolve()
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise CheckpointError that names the process that has it."""
        if self._path in _held:  # closing a second descriptor of this file would drop this process's own lock
            raise self._taken(os.getpid(), socket.gethostname())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CheckpointError(
                f"cannot write {self._path}: {error.strerror}", remedy=disk_remedy(error, self._path.parent)
            ) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise self._taken(holder.get("pid"), holder.get("host")) from error
        self._descriptor = descriptor
        _held.add(self._path)
        self._sign(descriptor)

    def release(self) -> None:
        """Let go; the file stays, empty, because removing it would race with the next process."""
        if self._descriptor is None:
            return
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None
        _held.discard(self._path)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _sign(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _taken(self, pid: object, host: object) -> CheckpointError:
        return CheckpointError(
            f"{self._path.parent} is in use by process {pid} on {host}",
            remedy="wait for that run, stop it, or set `output` to another folder",
        )


def _holder(descriptor: int) -> dict[str, object]:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
