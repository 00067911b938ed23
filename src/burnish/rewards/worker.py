"""The worker process: it loads the rewards once, then scores what it receives and reports after every response.

It imports neither torch nor configuration classes, so it starts in a fraction of a second. Its supervisor
(`burnish.rewards.supervisor`) ends it, with all processes that it started.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from burnish.errors import BurnishError, RewardError
from burnish.outside.frames import MAX_BYTES, read_frame
from burnish.outside.plugins import FIX_IT
from burnish.rewards.calling import IN_WORKER, Report, RewardCaller, in_a_line, traceback_of
from burnish.rewards.loading import LoadedReward, RewardSpec, load_reward
from burnish.rewards.messages import Answer, Idle, Judged, Ready, Refused, Violation
from burnish.rewards.outcome import MAX_DETAIL, Outcome, failure
from burnish.rewards.wire import MAX_ANSWER_BYTES, decode_request, encode_answer
from burnish.types import RewardStatus

CHANNEL_CLOSED = 113
"""Exit status of a worker whose reward has closed the socket to the training process."""
LOOP_BROKEN = 114
"""Exit status of a worker whose asynchronous reward has stopped the shared event loop or cancelled tasks of others."""

_HIGH_DESCRIPTOR = 200  # safe from code that closes or writes to the first few descriptors


class WorkerChannel:
    """The worker's end of the socket. Programs that a reward starts do not inherit it, and forks close it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = _move_up(descriptor)
        self._socket = socket.socket(fileno=self._descriptor)
        self._identity = os.fstat(self._descriptor).st_ino
        os.register_at_fork(after_in_child=self._close_in_fork)

    def receive(self) -> Any:
        """The next request. EOFError if the training process has closed the socket."""
        self._check()
        return decode_request(read_frame(self._socket.recv_into, MAX_BYTES))

    def send(self, answer: Answer) -> None:
        """Send an answer. If it is too long, nothing is sent and ValueError is raised."""
        frame = encode_answer(answer.plain())
        if len(frame) > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {len(frame):,} bytes")
        self._check()
        self._socket.sendall(frame)

    def _check(self) -> None:
        """End the process if the descriptor is not our socket any more.

        A reward may have closed it, and another file may have got its number since.
        """
        try:
            same = os.fstat(self._descriptor).st_ino == self._identity
        except OSError:
            same = False
        if not same:
            os._exit(CHANNEL_CLOSED)

    def _close_in_fork(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def serve(descriptor: int) -> None:
    """Main function of a worker. `descriptor` is its end of the socket."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a killed worker's output is not lost
    channel = WorkerChannel(descriptor)
    caller = RewardCaller(IN_WORKER)
    try:
        rewards = _load(channel, channel.receive())
        while True:
            _run(channel, caller, rewards, channel.receive())
    except (EOFError, ConnectionError):
        os._exit(0)  # the training process is gone or has closed the socket


def _run_concurrently(caller: RewardCaller, reward: LoadedReward, rows: Sequence[Any], report: Report) -> None:
    """Score rows on one event loop.

    If a reward stops the loop or cancels its tasks, the other responses cannot continue. Then the worker ends, and the
    pool tries them again one by one.
    """
    try:
        caller.concurrently(reward, rows, report)
    except BurnishError:
        raise
    except BaseException:  # noqa: BLE001  boundary: errors of one response are caught inside; this is the loop itself
        os._exit(LOOP_BROKEN)


def _move_up(descriptor: int) -> int:
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except OSError:  # this machine allows fewer descriptors
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def _load(channel: WorkerChannel, listed: Sequence[tuple[int, dict[str, Any]]]) -> dict[int, LoadedReward]:
    """The rewards by number. If one fails to load, the error is sent to the training process and the worker ends."""
    rewards: dict[int, LoadedReward] = {}
    for index, plain in listed:
        spec = RewardSpec(**plain)
        try:
            rewards[index] = load_reward(spec)
        except BurnishError as error:
            _refuse(channel, error)
        except BaseException as error:  # noqa: BLE001  boundary: importing runs the user's code
            failed = RewardError(f"loading reward {spec.name!r} failed: {in_a_line(error)}", remedy=FIX_IT)
            _refuse(channel, failed, error)
    channel.send(Ready({index: reward.signature for index, reward in rewards.items()}))
    return rewards


def _refuse(channel: WorkerChannel, error: BurnishError, cause: BaseException | None = None) -> None:
    cause = cause or error.__cause__
    text = "" if cause is None else failure(RewardStatus.ERROR, traceback_of(cause)).detail
    channel.send(Refused(type(error).__name__, error.message[:MAX_DETAIL], error.remedy, text))
    os._exit(0)


def _run(channel: WorkerChannel, caller: RewardCaller, rewards: dict[int, LoadedReward], request: list[Any]) -> None:
    task, index, items, rows = request
    reward = rewards[index]

    def report(item: int, outcome: Outcome) -> None:
        try:
            channel.send(Judged(task, item, outcome))
        except ValueError as error:
            detail = f"reward {reward.spec.label!r} returned too much for one response: {error}"
            channel.send(Judged(task, item, failure(RewardStatus.ERROR, detail)))

    try:
        if reward.signature.batched:
            for item, outcome in zip(items, caller.batch(reward, rows[0], len(items)), strict=True):
                report(item, outcome)
        elif reward.signature.asynchronous:
            _run_concurrently(caller, reward, list(zip(items, rows, strict=True)), report)
        else:
            for item, arguments in zip(items, rows, strict=True):
                report(item, caller.one(reward, arguments))
    except BurnishError as error:  # the reward breaks its contract (wrong length or type), so the run must stop
        channel.send(Violation(task, error.message[:MAX_DETAIL], error.remedy))
    channel.send(Idle(task))
