"""The training process's handle on one worker: start it, exchange messages, end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from burnish.errors import RewardError
from burnish.outside.frames import Correspondent, pair, read_frame, until
from burnish.outside.supervise import end_group, start_interpreter
from burnish.rewards.forking import fork_supervisor
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, read_answer
from burnish.rewards.wire import MAX_ANSWER_BYTES, UnsendableError, decode_answer, encode_request

_END_SECONDS = 15.0  # the supervisor usually takes milliseconds, and at most 11 seconds
_EXIT_SECONDS = 1.0  # for the supervisor, when it has ended all others
_GONE = -signal.SIGKILL
_PID, _STATUS = 0, 1  # what the supervisor reports, in this order
_REPORT_BYTES = 32


class WorkerProcess(Correspondent):
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
        self._reports: list[int] = []  # of the supervisor: the worker's process id, then its exit status
        self._status: int | None = None
        self.post(first)

    def _start(self, environment: Mapping[str, str], *, forked: bool) -> None:
        with pair() as (self._control, control), pair() as (channel, their_channel):
            descriptors = control.fileno(), their_channel.fileno()
            if forked:
                self._process = fork_supervisor(*descriptors, environment)
            else:
                self._process = start_interpreter(
                    "burnish.rewards.supervisor:supervise",
                    *descriptors,
                    os.getpid(),
                    descriptors=descriptors,
                    output=2,  # named, because otherwise it is not inherited if it was opened close-on-exec
                    environment=environment,
                )
        super().__init__(channel, MAX_ANSWER_BYTES)

    def send(self, message: Any) -> None:
        """Send a request without waiting. `flush` sends what does not fit into the socket now.

        Raises RewardError if the request cannot be encoded. A dead worker is only noticed on reading.
        """
        self.post(_request(message))

    def receive(self) -> Iterator[Answer]:
        """Yield the answers that have arrived, without waiting. Raises GarbledError for anything else."""
        for data in self.arrived():
            yield read_answer(decode_answer(data))

    @property
    def pid(self) -> int:
        """Process id of the worker itself. RewardError if its supervisor does not report it."""
        pid = self._reported(_PID, _END_SECONDS)
        if pid is None:
            raise RewardError("a worker process for rewards did not start", remedy="look at its output")
        return pid

    def ask_to_end(self) -> None:
        """Tell the supervisor to start killing. `kill` waits until it has finished."""
        with contextlib.suppress(OSError):  # it has already ended
            self._control.shutdown(socket.SHUT_WR)
            self._process.tell(signal.SIGCONT)  # a reward may have sent it SIGSTOP

    def kill(self) -> int:
        """Kill the worker and everything it started, and return its exit status. Idempotent."""
        if self._status is None:
            self.ask_to_end()
            self._status = self._end()
            self._control.close()
            self._channel.close()
        return self._status

    def exit_status(self) -> int:
        """Return the exit status of a worker that has closed its end, and kill processes that it left behind."""
        self._reported(_STATUS, 1.0)
        return self.kill()

    def _end(self) -> int:
        status = self._reported(_STATUS, _END_SECONDS)
        if status is None:  # the supervisor itself was killed: its worker dies with it, its process group here
            pid = self._reported(_PID, 0.0)
            if pid is not None:
                end_group(pid)
        self._process.end(0.0 if status is None else _EXIT_SECONDS)
        return _GONE if status is None else status

    def _reported(self, report: int, seconds: float) -> int | None:
        """Wait for a report of the supervisor, at most this many seconds. None if it does not arrive."""
        source = until(time.monotonic() + seconds, self._control)
        with contextlib.suppress(TimeoutError, EOFError):
            while len(self._reports) <= report:
                self._reports.append(int(read_frame(source, _REPORT_BYTES)))
        return self._reports[report] if report < len(self._reports) else None


def _request(message: Any) -> bytes:
    try:
        return encode_request(message)
    except UnsendableError as error:
        raise RewardError(
            f"an argument of a reward cannot be sent to its worker process: {error}",
            remedy="keep options and data columns plain (text, numbers, dates, lists, dictionaries, numpy arrays)",
        ) from error
