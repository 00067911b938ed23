"""The training process's handle on one worker: start it, exchange messages, end it. The pool notices its death.

A worker for functions in memory is a fork of this process that lets go of everything but the functions. A fork has the
memory of the program, so what the program holds there is open to its own functions. Files, sockets, environment
variables, signal handlers and output are the same as in any other worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from burnish.errors import RewardError
from burnish.outside.frames import Correspondent, pair, read_frame, until
from burnish.outside.supervise import (
    STOP_SIGNALS,
    Child,
    Forked,
    end_group,
    fork,
    holding_back_stop_signals,
    start_interpreter,
    wake_at_parents_end,
)
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, read_answer
from burnish.rewards.supervisor import supervise
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


def fork_supervisor(control: int, channel: int, environment: Mapping[str, str]) -> Child:
    """Fork a supervisor, which forks the worker."""
    trainer = os.getpid()

    def begin() -> int:
        wake_at_parents_end()
        _leave_the_program(control, channel, environment)
        supervise(control, channel, trainer)

    with holding_back_stop_signals():
        return Child(Forked(fork(begin)))


def _leave_the_program(control: int, channel: int, environment: Mapping[str, str]) -> None:
    """Make the fork as much like a fresh interpreter of a worker as possible."""
    gc.freeze()  # collecting objects of the program would close descriptors that are reused by then
    sys.settrace(None)
    sys.setprofile(None)
    os.setsid()
    _keep_only(control, channel)
    _forget_handlers()
    os.environ.clear()
    os.environ.update(environment)
    # The thread pools of large operations are not forked: a function that used one would wait for ever.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _keep_only(*descriptors: int) -> None:
    """Close all files but these, with nothing on standard input and both outputs on standard error."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)  # what a reward prints must not mix with our standard output
    first = 3
    for kept in (*sorted(descriptors), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, kept)
        first = kept + 1
    # The program's streams may be a notebook's, and may hold buffered text, which must be written once and not twice.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    sys.stdout = open(1, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - set(STOP_SIGNALS):  # the supervisor handles the stop signals
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
