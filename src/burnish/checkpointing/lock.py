"""One process writes to a run folder at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from pathlib import Path
from types import TracebackType

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_remedy

LOCK_FILE = "run.lock"
_ATTEMPTS = 20

_Identity = tuple[int, int]
"""Device and number of a file: what stays the same when a folder above it is renamed."""
_held: dict[_Identity, int] = {}
"""Lock files that this process holds, with its id: a forked child inherits this table but not the locks."""


class RunLock:
    """Holds `run.lock` for as long as the process lives; the operating system lets go of it at any kind of death.

    A POSIX record lock: it is not inherited by forked reward workers, so a worker that outlives a killed run does not
    keep the folder locked, and file systems on a network hold it between machines. What the file says (process id,
    host) is for people; only the lock itself counts, so the file of a dead process is stale by nature.

    The lock belongs to the file, not to its path: it is still held after the folder has been renamed, and one that is
    taken on a file which another process has meanwhile moved away is dropped and taken again at the path.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir.resolve() / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise CheckpointError that names the process that has it."""
        for _ in range(_ATTEMPTS):
            self._refuse_own()
            descriptor = self._open()
            if descriptor is None:
                continue
            self._lock(descriptor)
            if _identity_at(self._path) == _identity_of(descriptor):
                self._keep(descriptor)
                return
            os.close(descriptor)  # moved away or removed between opening and locking
        raise CheckpointError(
            f"{self._path} is replaced again and again while this process tries to lock it",
            remedy="stop what moves or removes the folder, then start again",
        )

    def release(self) -> None:
        """Let go; the file stays, empty, because removing it would race with the next process."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        _held.pop(_identity_of(descriptor), None)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def check(self) -> None:
        """Raise CheckpointError unless the folder at the path is still the one that was locked.

        A lock file that alone was removed is made and locked again. Costs one look at the file.
        """
        if self._descriptor is None:
            raise CheckpointError(f"{self._path} is not locked", remedy="lock the folder before writing to it")
        if _identity_at(self._path) == _identity_of(self._descriptor):
            return
        folder = self._path.parent
        if not folder.is_dir():
            where = _path_of(self._descriptor)
            raise CheckpointError(
                f"the run's folder {folder} was removed or moved away while the run was writing to it"
                + (f" (it is now {where.parent})" if where is not None else ""),
                remedy="move it back and start again to go on from its newest checkpoint; "
                "what came after that checkpoint is lost",
            )
        if os.path.lexists(self._path):
            raise CheckpointError(
                f"{folder} was replaced, or {self._path.name} in it, while the run was writing to it",
                remedy="see who else uses this folder; the run goes on from the newest checkpoint of its own folder",
            )
        self.release()
        self.acquire()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def _refuse_own(self) -> None:
        """Closing a second descriptor of a file that this process has locked would drop the lock."""
        identity = _identity_at(self._path)
        if identity is not None and _held.get(identity) == os.getpid():
            raise self._taken(os.getpid(), socket.gethostname())

    def _open(self) -> int | None:
        """None when the folder was moved away just after it was made."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{self._path} is not an ordinary file", remedy="remove it, then start again")
        return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise self._taken(holder.get("pid"), holder.get("host")) from error
        except OSError as error:
            os.close(descriptor)
            raise CheckpointError(
                f"cannot lock {self._path}: {error.strerror}; without a lock two runs could write to one folder",
                remedy="set `output` to a disk that has file locks (a local one, or a network disk with locks on)",
            ) from error

    def _keep(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise self._unusable(error) from error
        self._descriptor = descriptor
        _held[_identity_of(descriptor)] = os.getpid()

    def _unusable(self, error: OSError) -> CheckpointError:
        if self._path.is_dir():
            return CheckpointError(f"{self._path} is a folder", remedy="remove it, then start again")
        return CheckpointError(
            f"cannot write {self._path}: {error.strerror}", remedy=disk_remedy(error, self._path.parent)
        )

    def _taken(self, pid: object, host: object) -> CheckpointError:
        by = "another process" if pid is None else f"process {pid} on {host}"
        return CheckpointError(
            f"{self._path.parent} is in use by {by}",
            remedy="wait for that run, stop it, or set `output` to another folder",
        )


def _identity_of(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _identity_at(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _path_of(descriptor: int) -> Path | None:
    """Where an open file lies now, as far as the system tells; None when it was removed."""
    try:
        found = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
    return found if found.exists() else None


def _holder(descriptor: int) -> dict[str, object]:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
