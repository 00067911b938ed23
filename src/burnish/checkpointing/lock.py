"""The lock of a run folder, so that only one process writes to it at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from pathlib import Path

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_remedy

LOCK_FILE = "run.lock"
_ATTEMPTS = 20

_Identity = tuple[int, int]
"""Device and inode of a file, which stay the same when a parent folder is renamed."""
_held: dict[_Identity, int] = {}
"""Lock files that this process holds -> its process id. A forked child inherits this table, but not the locks."""


class RunLock:
    """A lock on `run.lock`, held while the process lives. The operating system releases it however the process ends.

    It is a POSIX record lock. Forked reward workers do not inherit it, so a worker that outlives a killed run does not
    keep the folder locked, and network file systems enforce it between machines. The content of the file (process id,
    host) is only for people; a dead process may leave it behind, but only the lock itself counts.

    The lock belongs to the file, not to its path, so it survives renaming the folder. If another process moves the file
    away between opening and locking, the lock is dropped and taken again at the path.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir.resolve() / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise CheckpointError that names the process that holds it."""
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
            f"{self._path} is replaced repeatedly while this process tries to lock it",
            remedy="stop what moves or removes the folder, then start again",
        )

    def release(self) -> None:
        """Release the lock. The empty file stays, because removing it would race with the next process."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        _held.pop(_identity_of(descriptor), None)
        os.ftruncate(descriptor, 0)  # while still locked, so that the next holder's entry is not erased
        os.close(descriptor)

    def check(self) -> None:
        """Raise CheckpointError unless the folder at the path is still the one that was locked.

        If only the lock file was removed, it is made and locked again. Cheap: one `stat` if all is well.
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
                remedy="move it back and start again to continue from its newest checkpoint; "
                "everything after that checkpoint is lost",
            )
        if os.path.lexists(self._path):
            raise CheckpointError(
                f"{folder} or its {self._path.name} was replaced while the run was writing to it",
                remedy="find out who else uses this folder; the run continues from the newest checkpoint in its own",
            )
        self.release()
        self.acquire()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _refuse_own(self) -> None:
        """Refuse a folder that this process has already locked.

        Otherwise the lock would be lost: closing any descriptor of the file releases a POSIX lock on it.
        """
        identity = _identity_at(self._path)
        if identity is not None and _held.get(identity) == os.getpid():
            raise self._in_use_error(os.getpid(), socket.gethostname())

    def _open(self) -> int | None:
        """A descriptor of the lock file, or None if the folder was moved away just after it was made."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # O_NONBLOCK, because opening a pipe in place of the file could wait for ever.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable_error(error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{self._path} is not a regular file", remedy="remove it, then start again")
        return descriptor

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise self._in_use_error(holder.get("pid"), holder.get("host")) from error
        except OSError as error:
            os.close(descriptor)
            raise CheckpointError(
                f"cannot lock {self._path}: {error.strerror}; without a lock two runs could write to one folder",
                remedy="set `output` to a disk with file locks (a local one, or a network disk with locking enabled)",
            ) from error

    def _keep(self, descriptor: int) -> None:
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise self._unusable_error(error) from error
        self._descriptor = descriptor
        _held[_identity_of(descriptor)] = os.getpid()

    def _unusable_error(self, error: OSError) -> CheckpointError:
        if self._path.is_dir():
            return CheckpointError(f"{self._path} is a folder", remedy="remove it, then start again")
        return CheckpointError(
            f"cannot write {self._path}: {error.strerror}", remedy=disk_remedy(error, self._path.parent)
        )

    def _in_use_error(self, pid: object, host: object) -> CheckpointError:
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
    """The current path of an open file, if the system provides it; None if it was removed."""
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
