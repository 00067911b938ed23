"""The pool of killable workers: hands out tasks, watches the time limits, replaces what it had to kill.

A task is a few responses for one reward. The worker reports after each of them, so the limit holds per response even
though a message carries many, and a kill costs only the response that was running.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from signal import SIGALRM
from typing import Any

from burnish.errors import ConfigError, RewardError
from burnish.outside import describe_exit
from burnish.rewards.calling import Arguments, timeout_detail
from burnish.rewards.inputs import Signature
from burnish.rewards.loading import RewardSpec
from burnish.rewards.outcome import Outcome, failure
from burnish.rewards.process import WorkerProcess
from burnish.types import RewardStatus

START_SECONDS = 120.0  # importing and constructing the rewards; a reward may load a model here
ASYNC_GRACE_SECONDS = 1.0  # an asynchronous worker keeps its own time first

Outcomes = dict[tuple[int, int], Outcome]


@dataclass(frozen=True, slots=True)
class Task:
    """Responses (their positions in the call, with the arguments of each) for the reward number `reward`.

    A batched task has one set of arguments for all of its items.
    """

    reward: int
    items: tuple[int, ...]
    rows: tuple[Arguments, ...]
    batched: bool = False

    def only(self, item: int) -> Task:
        """The same task cut down to one response."""
        return Task(self.reward, (item,), (self.rows[self.items.index(item)],))

    def message(self) -> tuple[Any, ...]:
        if self.batched:
            return ("batch", self.reward, (self.items, self.rows[0]))
        return ("each", self.reward, list(zip(self.items, self.rows, strict=True)))


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and what it is busy with. `deadline` is on the monotonic clock; None when idle."""

    process: WorkerProcess
    deadline: float | None
    ready: bool = False
    task: Task | None = None
    waiting: dict[int, None] = field(default_factory=dict)  # items without an outcome yet, in their order
    since: float = 0.0


class _TracebackInWorkerError(Exception):
    """Stands in for an exception of the worker process: its traceback as text, for `--debug`."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class WorkerPool:
    """Runs tasks on up to `size` worker processes, started when they are needed."""

    def __init__(self, specs: Sequence[RewardSpec], size: int) -> None:
        self._specs = list(specs)
        self._size = size
        self._workers: list[_Worker] = []
        self._signatures: list[Signature] | None = None
        self.seconds = [0.0] * len(self._specs)  # busy time per reward since the start
        self._pending: deque[Task] = deque()
        self._outcomes: Outcomes = {}
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())

    def signatures(self) -> list[Signature]:
        """What the rewards ask for, read by the first worker; raises what loading them raised."""
        if self._signatures is None:
            try:
                worker = self._start()
                while not worker.ready:
                    self._step()
            except BaseException:
                self.close()
                raise
        assert self._signatures is not None
        return self._signatures

    def begin(self, tasks: Iterable[Task] = ()) -> None:
        """Queue tasks, hand queued ones to idle workers and take what others have said, without waiting for any. Call
        it often, also without tasks; `run` gives the outcomes. After any error no worker and no task is left."""
        self._pending.extend(tasks)
        try:
            self._bury_idle()
            self._assign()
            self._step(patience=0.0)
            self._assign()
        except BaseException:
            self.close()
            raise

    def run(self, tasks: Iterable[Task]) -> Outcomes:
        """Outcome of every (reward, item) of the tasks and of those begun before. After any error, Ctrl-C included, no
        worker and no task is left."""
        self._pending.extend(tasks)
        try:
            self._bury_idle()
            while self._pending or any(worker.task for worker in self._workers):
                self._assign()
                self._step()
        except BaseException:
            self.close()
            raise
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def close(self) -> None:
        """Kills all workers and forgets all tasks; a later `run` starts fresh ones. Idempotent."""
        self._pending.clear()
        self._outcomes = {}
        _kill_all(self._workers, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.process.pid for worker in self._workers]

    def _start(self) -> _Worker:
        worker = _Worker(WorkerProcess(self._specs), deadline=time.monotonic() + START_SECONDS)
        self._workers.append(worker)
        return worker

    def _assign(self) -> None:
        for worker in self._workers:
            if self._pending and worker.ready and worker.task is None:
                self._give(worker, self._pending.popleft())
        starting = sum(not worker.ready for worker in self._workers)
        for _ in range(min(self._size - len(self._workers), len(self._pending) - starting)):
            self._start()

    def _bury_idle(self) -> None:
        """Removes workers that ended between two calls: an idle one has nothing to say but the end of its pipe."""
        for worker in list(self._workers):
            if worker.task is None and worker.ready and worker.process.connection.poll():
                self._remove(worker)
                worker.process.kill()

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.waiting = task, dict.fromkeys(task.items)
        worker.since = time.monotonic()
        worker.deadline = worker.since + self._limit(task)
        worker.process.send(task.message())

    def _limit(self, task: Task) -> float:
        grace = ASYNC_GRACE_SECONDS if self._concurrent(task) else 0.0
        return self._specs[task.reward].timeout_seconds + grace

    def _concurrent(self, task: Task) -> bool:
        return not task.batched and self._signatures is not None and self._signatures[task.reward].asynchronous

    def _step(self, patience: float = math.inf) -> None:
        """Waits for the next message or deadline, but not longer than `patience` seconds, and acts on it."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        pause = min(patience, max(0.0, min(deadlines, default=0.0) - time.monotonic()))
        by_connection: dict[Any, _Worker] = {worker.process.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), timeout=pause):
            self._drain(by_connection[connection])
        now = time.monotonic()
        for worker in list(self._workers):
            late = worker.deadline is not None and now > worker.deadline
            if late and not worker.process.connection.poll():
                self._expire(worker)

    def _drain(self, worker: _Worker) -> None:
        connection: Connection = worker.process.connection
        try:
            while connection.poll():
                self._receive(worker, connection.recv())
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._died(worker)

    def _receive(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        match message:
            case ("outcome", item, outcome) if worker.task is not None:
                self._outcomes[worker.task.reward, item] = outcome
                worker.waiting.pop(item, None)
                if not self._concurrent(worker.task):
                    worker.deadline = time.monotonic() + self._limit(worker.task)
            case ("idle",) if worker.task is not None:
                self.seconds[worker.task.reward] += time.monotonic() - worker.since
                worker.task, worker.deadline = None, None
            case ("ready", signatures):
                self._signatures = signatures
                worker.ready, worker.deadline = True, None
            case ("refused", kind, text, remedy, cause):
                refusal = (ConfigError if kind == ConfigError.__name__ else RewardError)(text, remedy=remedy)
                raise refusal from (_TracebackInWorkerError(cause) if cause else None)
            case ("violation", text, remedy):
                raise RewardError(text, remedy=remedy)
            case _:
                raise RewardError(f"a reward worker sent an unexpected message: {message!r:.200}")

    def _expire(self, worker: _Worker) -> None:
        self._remove(worker)
        worker.process.kill()
        if worker.task is None:
            raise RewardError(
                f"the rewards {self._labels()} were not loaded within {START_SECONDS:g} seconds",
                remedy="do less when the module is imported and the class constructed",
            )
        spec = self._specs[worker.task.reward]
        lost = failure(RewardStatus.TIMEOUT, timeout_detail(spec.label, spec.timeout_seconds))
        self._settle(worker, lost)

    def _died(self, worker: _Worker) -> None:
        self._remove(worker)
        status = worker.process.exit_status()
        if worker.task is None:
            if worker.ready:  # it had nothing to do and was killed from outside: a fresh one is started when needed
                return
            raise RewardError(f"a worker process ended while loading {self._labels()} ({describe_exit(status)})")
        spec = self._specs[worker.task.reward]
        if status == -SIGALRM:
            lost = failure(RewardStatus.TIMEOUT, timeout_detail(spec.label, spec.timeout_seconds))
        else:
            detail = f"the worker process of reward {spec.label!r} died ({describe_exit(status)})"
            lost = failure(RewardStatus.ERROR, detail)
        self._settle(worker, lost)

    def _settle(self, worker: _Worker, lost: Outcome) -> None:
        """Gives the lost outcome to the response that was running and queues the others again."""
        task, waiting = worker.task, list(worker.waiting)
        assert task is not None
        self.seconds[task.reward] += time.monotonic() - worker.since
        if task.batched:
            guilty, rest = waiting, []
        elif self._concurrent(task) and len(waiting) > 1:
            guilty, rest = [], waiting  # any of them may have done it: tried again one by one
        else:
            guilty, rest = waiting[:1], waiting[1:]
        for item in guilty:
            self._outcomes[task.reward, item] = lost
        self._pending.extendleft(task.only(item) for item in reversed(rest))

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)

    def _labels(self) -> str:
        return ", ".join(repr(spec.label) for spec in self._specs)


def _kill_all(workers: list[_Worker], owner: int) -> None:
    """Also runs at the interpreter's exit; a forked copy of the process must leave the workers alone."""
    if os.getpid() != owner:
        return
    while workers:
        workers.pop().process.kill()
