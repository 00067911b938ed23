"""The fork server of role processes: an interpreter that has imported what roles need. Each of them is a fork of it.

The imports take about six seconds of a core, and forks share their memory. Forks lack the threads of the process that
they come from, so the run's own process cannot be it. The server computes nothing and so starts none; the pool that
numpy's BLAS opens at import is made again in each fork.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from burnish.distributed import server
from burnish.distributed.pulse import SILENT_SECONDS
from burnish.outside.frames import can_be_read, pair
from burnish.outside.plugins import describe_exit
from burnish.outside.supervise import Child, Closing, Forked, activity, adopting_orphans, fork_for, start_interpreter

_LOOK_SECONDS = 0.5
_MESSAGE_BYTES = 1 << 17


class ForkServer(Closing):
    """Starts the interpreter when the first process is wanted, and again if it has ended. As a context manager it ends
    it, which ends none of its forks: they are children of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Child | None = None

    def fork(
        self,
        *arguments: int | str,
        descriptors: tuple[int, int],
        environment: Mapping[str, str],
        given_up: threading.Event,
    ) -> Child:
        """A new process, in which `burnish.distributed.server.main` gets these descriptors and arguments.

        environment: variables that it has in addition. OSError if it cannot be started or is given up, TimeoutError if
        the interpreter hangs.
        """
        request = json.dumps([os.getpid(), sys.path, dict(environment), arguments]).encode()
        with self._lock, adopting_orphans():
            interpreter = self._running()
            try:
                socket.send_fds(self._channel, [request], descriptors)
                self._await_answer(interpreter.pid, given_up)
                answer = self._channel.recv(_MESSAGE_BYTES)
            except BaseException:  # boundary: a late answer would be taken for the next request's
                self._end()
                raise
            if not answer:
                status = interpreter.end(_LOOK_SECONDS)
                how = "does not end" if status is None else f"has ended ({describe_exit(status)})"
                raise OSError(errno.ECHILD, f"its fork server {how}")
        if (number := int(answer)) < 0:
            raise OSError(-number, os.strerror(-number))
        return Child(Forked(number))

    def _running(self) -> Child:
        if self._process is None or self._process.status() is not None:
            self._end()
            with pair(socket.SOCK_SEQPACKET) as (self._channel, theirs):
                self._process = start_interpreter(
                    "burnish.distributed.fork_server:main",
                    theirs.fileno(),
                    os.getpid(),
                    descriptors=(theirs.fileno(),),
                    output=None,
                    environment=os.environ,
                )
        return self._process

    def _await_answer(self, pid: int, given_up: threading.Event) -> None:
        """Wait as long as the interpreter does anything; it may import from a slow disk."""
        seen, since = activity(pid), time.monotonic()
        while not can_be_read(self._channel.fileno(), _LOOK_SECONDS):
            if given_up.is_set():
                raise OSError(errno.ECANCELED, "another process could not be started")
            if (now := activity(pid)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > SILENT_SECONDS:
                raise TimeoutError(f"its fork server has given no sign of life for {SILENT_SECONDS:g} seconds")

    def _end(self) -> None:
        if self._process is not None:
            self._channel.close()
            self._process.end()
            self._process = None

    def close(self) -> None:
        """End the interpreter. Idempotent."""
        with self._lock:
            self._end()


def main(descriptor: int, owner: int) -> None:
    """Import what roles need, then fork one for each request. Until the other end is closed, or its process has gone:
    something that it forked may hold the other end open."""
    import transformers.modeling_utils  # noqa: F401  most of the six seconds

    gc.collect()
    gc.freeze()  # collections of the forks then touch, and copy, nothing of it
    channel = socket.socket(fileno=descriptor)
    while os.getppid() == owner:
        if can_be_read(descriptor, _LOOK_SECONDS) and not _answer(channel):
            return


def _answer(channel: socket.socket) -> bool:
    """Fork the process that is asked for. False if nobody is left to ask."""
    request, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 2)
    if not request:
        return False
    parent, sys.path[:], environment, arguments = json.loads(request)
    try:
        fork_for(parent, lambda: _begin(channel, environment, [*descriptors, parent, *arguments]))
    except OSError as error:
        channel.send(str(-(error.errno or errno.EAGAIN)).encode())
    finally:
        for given in descriptors:
            os.close(given)
    return True


def _begin(channel: socket.socket, environment: dict[str, str], arguments: list[Any]) -> int:
    os.environ.update(environment)
    channel.send(str(os.getpid()).encode())
    channel.close()
    server.main(*arguments)
    return 0
