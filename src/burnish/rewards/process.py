"""The parent's handle of one worker process: start it, talk to it, kill it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from burnish.errors import RewardError
from burnish.rewards.loading import RewardSpec

_PROGRAM = "import sys; sys.path[:] = {path!r}; from burnish.rewards.worker import serve; serve({descriptor}, {parent})"


class WorkerProcess:
    """A fresh interpreter in its own process group. Nothing of the parent's `__main__` is imported into it."""

    def __init__(self, specs: Sequence[RewardSpec]) -> None:
        """Raises RewardError when the system lets no further process be started."""
        try:
            self._start()
        except OSError as error:
            raise RewardError(
                f"cannot start a reward worker: {error.strerror or error}",
                remedy="lower scoring.workers, end other processes, or raise the limits of processes, open files and "
                "memory (ulimit -u, ulimit -n, ulimit -v)",
            ) from error
        self.send(list(specs))

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        program = _PROGRAM.format(path=sys.path, descriptor=descriptor, parent=os.getpid())
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)  # unless the process starts
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                start_new_session=True,
                env=_environment(),
            )
            stack.pop_all()
        self.connection = Connection(ours.detach())

    def send(self, message: Any) -> None:
        """Sends a message; RewardError when it cannot travel. A dead worker is noticed on reading."""
        try:
            data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise RewardError(
                f"a value that a reward asks for cannot be sent to its worker process: {error}",
                remedy="keep options and data columns plain (text, numbers, lists, dictionaries)",
            ) from error
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(data)

    def kill(self) -> int:
        """Ends the process and whatever it started, at once and for certain; returns its exit status. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        if not self.connection.closed:
            self.connection.close()
        return status

    def exit_status(self) -> int:
        """Waits for a process that has closed its end; what it left behind is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        return self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid


def _environment() -> dict[str, str]:
    """Workers share the machine with training: one arithmetic thread each unless the user says otherwise."""
    return {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
