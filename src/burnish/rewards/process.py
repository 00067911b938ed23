"""The training process's handle on one worker: start it, exchange messages, end it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from burnish.errors import RewardError
from burnish.outside.plugins import holding_back_stop_signals
from burnish.rewards.forking import ForkedProcess, fork_supervisor
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, read_answer
from burnish.rewards.wire import FrameReader, UnsendableError, decode_answer, encode_request

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from burnish.rewards.supervisor import supervise; "
    "supervise({control}, {channel}, {trainer})"
)
_RECEIVE_BYTES = 1 << 18
_END_SECONDS = 15.0  # the supervisor usually takes milliseconds, and at most 11 seconds
_GONE = -signal.SIGKILL


class WorkerProcess:
    """A new interpreter with its own environment, under a supervisor that ends everything it starts.

    Unlike with `multiprocessing`, it does not import the parent's `__main__`, and nothing that it sends is unpickled.
    For functions in memory it is a fork of this process instead, with the same environment and supervisor.
    """

    def __init__(self, rewards: Sequence[tuple[int, RewardSpec]], environment: Mapping[str, str]) -> None:
        """`rewards` are the rewards to load, with their numbers. RewardError if the process cannot be started."""
        first = _request([(index, asdict(spec)) for index, spec in rewards])  # may fail, so before the process starts
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
        self._reports = ""  # from the supervisor: lines "pid N", "status N"
        self._status: int | None = None
        self.ended = False  # whether the worker has closed its end of the socket
        self._send(first)

    def _start(self, environment: Mapping[str, str], *, forked: bool) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._control, control = socket.socketpair()
            ours.callback(self._control.close)  # if starting the process fails; else `pop_all` below keeps it open
            theirs.callback(control.close)
            self._channel, channel = socket.socketpair()
            ours.callback(self._channel.close)
            theirs.callback(channel.close)
            start = fork_supervisor if forked else _start_interpreter
            with holding_back_stop_signals():
                self._process = start(control.fileno(), channel.fileno(), environment)
            ours.pop_all()

    def fileno(self) -> int:
        """For polling: readable if the worker has answered or ended, writable if `flush` can continue."""
        return self._channel.fileno()

    @property
    def unsent(self) -> bool:
        """Whether part of the last request is still waiting for room in the socket."""
        return len(self._unsent) > 0

    def send(self, message: Any) -> None:
        """Send a request without waiting. `flush` sends the rest of what does not fit into the socket now.

        Raises RewardError if the request cannot be encoded. A dead worker is only noticed on reading.
        """
        self._send(_request(message))

    def _send(self, frame: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + frame)
        self.flush()

    def flush(self) -> None:
        """Send as much of the rest as the socket accepts."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent = memoryview(b"")

    def receive(self) -> Iterator[Answer]:
        """The answers that have arrived, without waiting. Sets `ended` if the worker has closed its end.

        Raises GarbledError for anything that is not an answer.
        """
        yield from self._answers()
        while not self.ended:
            try:
                data = self._channel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except (ConnectionResetError, BrokenPipeError):  # it died with a request unread, which is an end as well
                data = b""
            self.ended = not data
            self._reader.feed(data)
            yield from self._answers()

    def _answers(self) -> Iterator[Answer]:
        for frame in self._reader.frames():
            yield read_answer(decode_answer(frame))

    @property
    def pid(self) -> int:
        """Process id of the worker itself. RewardError if its supervisor does not report it."""
        pid = self._reported("pid", _END_SECONDS)
        if pid is None:
            raise RewardError("a worker process for rewards did not start", remedy="look at its output")
        return pid

    def ask_to_end(self) -> None:
        """Tell the supervisor to start killing. `kill` waits until it has finished."""
        with contextlib.suppress(OSError):  # it has already ended
            self._control.shutdown(socket.SHUT_WR)
            os.kill(self._process.pid, signal.SIGCONT)  # a reward may have sent it SIGSTOP

    def kill(self) -> int:
        """Kill the worker and everything it started, and return its exit status. Idempotent."""
        if self._status is None:
            self.ask_to_end()
            self._status = self._end()
            self._close()
        return self._status

    def exit_status(self) -> int:
        """Exit status of a worker that has closed its end. Processes that it left behind are killed."""
        self._reported("status", 1.0)
        return self.kill()

    def _end(self) -> int:
        status = self._reported("status", _END_SECONDS)
        if status is None:  # the supervisor itself was killed: its worker dies with it, its process group here
            pid = self._reported("pid", 0.0)
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid if pid is None else pid, signal.SIGKILL)
            self._process.kill()
        self._process.wait()
        return _GONE if status is None else status

    def _reported(self, word: str, seconds: float) -> int | None:
        """The number that the supervisor has reported under this word: waits until it does or ends, and at most so
        many seconds. None if there is none."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        while (found := re.search(rf"^{word} (-?\d+)\n", self._reports, re.MULTILINE)) is None:
            left = deadline - time.monotonic()
            data = self._control.recv(4096) if left > 0 and poller.poll(1000 * left) else b""
            if not data:
                return None
            self._reports += data.decode()
        return int(found[1])

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
        stdout=2,  # a reward's output must not mix with our standard output
        stderr=2,  # named, because otherwise it is not inherited if it was opened close-on-exec
        pass_fds=(control, channel),
        start_new_session=True,  # so that Ctrl-C in the terminal does not reach the worker
        env=dict(environment),
    )


def _request(message: Any) -> bytes:
    try:
        return encode_request(message)
    except UnsendableError as error:
        raise RewardError(
            f"an argument of a reward cannot be sent to its worker process: {error}",
            remedy="keep options and data columns plain (text, numbers, dates, lists, dictionaries, numpy arrays)",
        ) from error
