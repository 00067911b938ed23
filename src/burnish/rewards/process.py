"""The training process's handle of one worker: start it, talk to it, end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from burnish.errors import RewardError
from burnish.plugins import holding_back_stop_signals
from burnish.rewards.forking import ForkedProcess, fork_supervisor
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, read_answer
from burnish.rewards.wire import FrameReader, UnsendableError, decode_answer, encode_request

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from burnish.rewards.supervisor import supervise; "
    "supervise({control}, {channel}, {trainer})"
)
_RECEIVE_BYTES = 1 << 18
_END_SECONDS = 15.0  # the supervisor takes milliseconds, and no longer than 11 seconds
_GONE = -signal.SIGKILL


class WorkerProcess:
    """A fresh interpreter with an environment of its own, below a supervisor that ends all that it starts. Nothing of
    the parent's `__main__` is imported into it, and nothing that it says is unpickled.

    For functions in memory it is a fork of this process instead, with the same environment and supervisor."""

    def __init__(self, rewards: Sequence[tuple[int, RewardSpec]], environment: Mapping[str, str]) -> None:
        """`rewards` are what it loads, with their numbers. RewardError when it cannot be started."""
        first = _request([(index, asdict(spec)) for index, spec in rewards])
        try:
            self._start(environment, forked=any(spec.is_in_memory for _, spec in rewards))
        except OSError as error:
            raise RewardError(
                f"cannot start a reward worker: {error.strerror or error}",
                remedy="lower scoring.workers, end other processes, or raise the limits of processes, open files and "
                "memory (ulimit -u, ulimit -n, ulimit -v)",
            ) from error
        self._channel.setblocking(False)
        self._reader = FrameReader()
        self._unsent = memoryview(b"")
        self._told = b""  # by the supervisor: lines "pid N", "status N"
        self._status: int | None = None
        self.ended = False  # whether the worker has closed its end
        self._send(first)

    def _start(self, environment: Mapping[str, str], *, forked: bool) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._control, control = socket.socketpair()
            ours.callback(self._control.close)  # unless the process starts
            theirs.callback(control.close)
            self._channel, channel = socket.socketpair()
            ours.callback(self._channel.close)
            theirs.callback(channel.close)
            start = fork_supervisor if forked else _start_interpreter
            with holding_back_stop_signals():
                self._process = start(control.fileno(), channel.fileno(), environment)
            ours.pop_all()

    def fileno(self) -> int:
        """For polling: readable when the worker has answered or ended, writable when `flush` can go on."""
        return self._channel.fileno()

    @property
    def unsent(self) -> bool:
        """Whether a part of the last request still waits for room in the socket."""
        return len(self._unsent) > 0

    def send(self, message: Any) -> None:
        """Sends a request without waiting; `flush` sends what finds no room now. RewardError when it cannot travel. A
        dead worker is noticed on reading."""
        self._send(_request(message))

    def _send(self, frame: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + frame)
        self.flush()

    def flush(self) -> None:
        """Sends as much of what is left as the socket takes."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = memoryview(b"")

    def receive(self) -> Iterator[Answer]:
        """The answers that are there, without waiting; sets `ended` at the end of them all. GarbledError at what is
        no answer."""
        yield from self._answers()
        while not self.ended:
            try:
                data = self._channel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except (ConnectionResetError, BrokenPipeError):
                data = b""
            self.ended = not data
            self._reader.feed(data)
            yield from self._answers()

    def _answers(self) -> Iterator[Answer]:
        for frame in self._reader.frames():
            yield read_answer(decode_answer(frame))

    @property
    def pid(self) -> int:
        """Process id of the worker itself. RewardError when its supervisor does not tell it."""
        self._listen(lambda: self._line("pid") is not None, _END_SECONDS)
        pid = self._line("pid")
        if pid is None:
            raise RewardError("a worker process for rewards did not start", remedy="look at what it printed")
        return pid

    def ask_to_end(self) -> None:
        """Lets the supervisor begin to kill; `kill` waits for it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._control.shutdown(socket.SHUT_WR)
            os.kill(self._process.pid, signal.SIGCONT)  # a reward may have stopped it

    def kill(self) -> int:
        """Ends the worker and whatever it started, at once and for certain; returns its exit status. Idempotent."""
        if self._status is None:
            self.ask_to_end()
            self._status = self._end()
            self._close()
        return self._status

    def exit_status(self) -> int:
        """Exit status of a worker that has closed its end; what it left behind is killed."""
        self._listen(lambda: self._line("status") is not None, 1.0)
        return self.kill()

    def _end(self) -> int:
        self._listen(lambda: self._line("status") is not None, _END_SECONDS)
        status = self._line("status")
        if status is None:  # the supervisor was killed itself: the worker ends with it, its process group here
            pid = self._line("pid")
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid if pid is None else pid, signal.SIGKILL)
            self._process.kill()
        self._process.wait()
        return _GONE if status is None else status

    def _line(self, word: str) -> int | None:
        """The number that the supervisor has told under this word."""
        for line in self._told.split(b"\n")[:-1]:
            name, _, number = line.partition(b" ")
            if name == word.encode():
                return int(number)
        return None

    def _listen(self, heard: Callable[[], bool], seconds: float) -> None:
        """Reads what the supervisor tells until `heard`, its end, or so many seconds are over."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while not heard() and (left := deadline - time.monotonic()) > 0:
            if not poller.poll(1000 * left):
                return
            data = self._control.recv(4096)
            if not data:
                return
            self._told += data

    def _close(self) -> None:
        self._control.close()
        self._channel.close()


def _start_interpreter(
    control: int, channel: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes] | ForkedProcess:
    program = _PROGRAM.format(path=sys.path, control=control, channel=channel, trainer=os.getpid())
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what a reward prints must not mix with our standard output
        stderr=2,  # by name: it is handed on even where it was opened for this process alone
        pass_fds=(control, channel),
        start_new_session=True,
        env=dict(environment),
    )


def _request(message: Any) -> bytes:
    try:
        return encode_request(message)
    except UnsendableError as error:
        raise RewardError(
            f"a value that a reward asks for cannot be sent to its worker process: {error}",
            remedy="keep options and data columns plain (text, numbers, dates, lists, dictionaries, numpy arrays)",
        ) from error
