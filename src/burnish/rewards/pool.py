"""The pool of killable workers: hands out tasks, watches the time limits, replaces what it had to kill.

A task is a few responses for one reward. The worker reports after each of them, so the limit holds per response even
though a message carries many, and a kill costs only the response that was running.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import ConfigError, RewardError
from burnish.plugins import describe_exit
from burnish.rewards.calling import Arguments, TracebackInWorkerError, timeout_detail
from burnish.rewards.environment import worker_environment
from burnish.rewards.inputs import Signature
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, Idle, Judged, Ready, Refused, Violation
from burnish.rewards.outcome import Outcome, failure
from burnish.rewards.process import WorkerProcess
from burnish.rewards.wire import GarbledError
from burnish.rewards.worker import CHANNEL_CLOSED, LOOP_BROKEN
from burnish.types import RewardStatus

ASYNC_GRACE_SECONDS = 1.0  # an asynchronous worker keeps its own time first
MAX_PAUSE_SECONDS = 3600.0  # polls count in milliseconds of 32 bits

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

    def request(self, number: int) -> list[Any]:
        """What a worker is sent; its answers name the number."""
        if self.batched:
            return ["batch", number, self.reward, [list(self.items), self.rows[0]]]
        return ["each", number, self.reward, [list(row) for row in zip(self.items, self.rows, strict=True)]]


@dataclass(slots=True, eq=False)
class _Group:
    """The rewards that share workers, because they see the same environment and all need a fork of this process or
    none does, and the tasks that wait for one."""

    rewards: list[tuple[int, RewardSpec]]
    environment: Mapping[str, str]
    pending: deque[Task] = field(default_factory=deque)

    def labels(self) -> str:
        return ", ".join(repr(spec.label) for _, spec in self.rewards)


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and what it is busy with. `deadline` is on the monotonic clock; None when idle."""

    process: WorkerProcess
    group: _Group
    deadline: float | None
    ready: bool = False
    task: Task | None = None
    number: int = 0  # of its task, so that no answer to another one is taken for its own
    waiting: dict[int, None] = field(default_factory=dict)  # items without an outcome yet, in their order
    since: float = 0.0


class WorkerPool:
    """Runs tasks on worker processes, started when they are needed: up to `size` for all rewards that see the same
    environment. The variables that they are given are those of now, also for workers that start later."""

    def __init__(self, specs: Sequence[RewardSpec], size: int, *, start_timeout_seconds: float = 60.0) -> None:
        self._specs = list(specs)
        self._size = size
        self._start_seconds = start_timeout_seconds
        self._groups = _groups(self._specs)
        self._context = copy_context()  # holds the functions that are at hand now, for workers that are forked later
        self._workers: list[_Worker] = []
        self._signatures: dict[int, Signature] = {}
        self.seconds = [0.0] * len(self._specs)  # busy time per reward since the start
        self._numbers = itertools.count(1)
        self._outcomes: Outcomes = {}
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())

    def signatures(self) -> list[Signature]:
        """What the rewards ask for, read by a first worker of each group; raises what loading them raised."""
        try:
            for group in self._groups:
                if not all(index in self._signatures for index, _ in group.rewards):
                    self._start(group)
            while any(not worker.ready for worker in self._workers):
                self._step()
        except BaseException:
            self.close()
            raise
        return [self._signatures[index] for index in range(len(self._specs))]

    def begin(self, tasks: Iterable[Task] = ()) -> None:
        """Queue tasks, hand queued ones to idle workers and take what others have said, without waiting for any. Call
        it often, also without tasks; `run` gives the outcomes. After any error no worker and no task is left."""
        self._queue(tasks)
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
        self._queue(tasks)
        try:
            self._bury_idle()
            while any(group.pending for group in self._groups) or any(worker.task for worker in self._workers):
                self._assign()
                self._step()
        except BaseException:
            self.close()
            raise
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def close(self) -> None:
        """Kills all workers and forgets all tasks; a later `run` starts fresh ones. Idempotent."""
        for group in self._groups:
            group.pending.clear()
        self._outcomes = {}
        _kill_all(self._workers, os.getpid())

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.process.pid for worker in self._workers]

    def _queue(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._group_of(task).pending.append(task)

    def _group_of(self, task: Task) -> _Group:
        return next(group for group in self._groups if any(index == task.reward for index, _ in group.rewards))

    def _start(self, group: _Group) -> None:
        process = self._context.run(WorkerProcess, group.rewards, group.environment)
        self._workers.append(_Worker(process, group, deadline=time.monotonic() + self._start_seconds))

    def _assign(self) -> None:
        for worker in self._workers:
            if worker.group.pending and worker.ready and worker.task is None:
                self._give(worker, worker.group.pending.popleft())
        for group in self._groups:
            mine = [worker for worker in self._workers if worker.group is group]
            starting = sum(not worker.ready for worker in mine)
            for _ in range(min(self._size - len(mine), len(group.pending) - starting)):
                self._start(group)

    def _bury_idle(self) -> None:
        """Removes workers that ended, or said something without being asked, between two calls."""
        for worker in list(self._workers):
            if worker.task is None and worker.ready:
                self._drain(worker)

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.waiting, worker.number = task, dict.fromkeys(task.items), next(self._numbers)
        worker.since = time.monotonic()
        worker.deadline = worker.since + self._limit(task)
        worker.process.send(task.request(worker.number))

    def _limit(self, task: Task) -> float:
        grace = ASYNC_GRACE_SECONDS if self._concurrent(task) else 0.0
        return self._specs[task.reward].timeout_seconds + grace

    def _concurrent(self, task: Task) -> bool:
        return not task.batched and self._signatures[task.reward].asynchronous

    def _step(self, patience: float = math.inf) -> None:
        """Waits for the next message or deadline, but not longer than `patience` seconds, and acts on it."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        pause = min(patience, max(0.0, min(deadlines, default=0.0) - time.monotonic()))
        for worker in self._ready(pause):
            worker.process.flush()
            self._drain(worker)
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.deadline is not None and now > worker.deadline:
                self._drain(worker)  # what it said in time counts
                if worker in self._workers and worker.deadline is not None and now > worker.deadline:
                    self._expire(worker)

    def _ready(self, seconds: float) -> list[_Worker]:
        """The workers that have something to say or room for more of their task."""
        poller = select.poll()
        by_descriptor = {worker.process.fileno(): worker for worker in self._workers}
        for descriptor, worker in by_descriptor.items():
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if worker.process.unsent else 0))
        return [
            by_descriptor[descriptor]
            for descriptor, _ in poller.poll(math.ceil(1000 * min(seconds, MAX_PAUSE_SECONDS)))
        ]

    def _drain(self, worker: _Worker) -> None:
        """Acts on all that a worker has said, and on its end."""
        try:
            for answer in worker.process.receive():
                self._receive(worker, answer)
        except GarbledError as error:
            self._lose(worker, worker.process.kill, f"sent the training process {error} in place of an answer")
            return
        if worker.process.ended:
            self._lose(worker, worker.process.exit_status, "")

    def _receive(self, worker: _Worker, answer: Answer) -> None:
        match answer:
            case Judged(task, item, outcome) if task == worker.number and item in worker.waiting:
                assert worker.task is not None
                self._outcomes[worker.task.reward, item] = outcome
                del worker.waiting[item]
                if not self._concurrent(worker.task):
                    worker.deadline = time.monotonic() + self._limit(worker.task)
            case Idle(task) if task == worker.number and worker.task is not None and not worker.waiting:
                self.seconds[worker.task.reward] += time.monotonic() - worker.since
                worker.task, worker.deadline = None, None
            case Ready(signatures) if not worker.ready and list(signatures) == [i for i, _ in worker.group.rewards]:
                self._signatures.update(signatures)
                worker.ready, worker.deadline = True, None
            case Refused(kind, text, remedy, cause) if not worker.ready:
                refusal = (ConfigError if kind == ConfigError.__name__ else RewardError)(text, remedy=remedy)
                raise refusal from (TracebackInWorkerError(cause) if cause else None)
            case Violation(task, text, remedy) if task == worker.number and worker.task is not None:
                raise RewardError(text, remedy=remedy)
            case _:
                raise GarbledError(f"{answer!r:.80}, which it was not asked for,")

    def _expire(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        if worker.task is None:
            raise RewardError(
                f"the rewards {worker.group.labels()} were not loaded within {self._start_seconds:g} seconds",
                remedy="do less when the module is imported and the class constructed, or raise "
                "scoring.start_timeout_seconds",
            )
        spec = self._specs[worker.task.reward]
        lost = failure(RewardStatus.TIMEOUT, timeout_detail(spec.label, spec.timeout_seconds))
        self._settle(worker, lost)

    def _lose(self, worker: _Worker, end: Callable[[], int], reason: str) -> None:
        """Ends a worker that is dead already or says what makes no sense; the response that was running is lost."""
        self._workers.remove(worker)
        status = end()
        if worker.task is not None:
            what = f"the worker process of reward {self._specs[worker.task.reward].label!r} "
            self._settle(worker, failure(RewardStatus.ERROR, what + (reason or _cause_of_death(status))))
        elif not worker.ready:
            what = f"a worker process that was loading {worker.group.labels()} "
            raise RewardError(what + (reason or _cause_of_death(status)), remedy="look at what it printed")

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
        worker.group.pending.extendleft(task.only(item) for item in reversed(rest))


def _groups(specs: Sequence[RewardSpec]) -> list[_Group]:
    """The rewards with the same `environment` together, in the order in which they come. Only functions in memory
    run in forks: all others keep an interpreter that holds nothing of this program."""
    groups: dict[tuple[frozenset[str], bool], _Group] = {}
    for index, spec in enumerate(specs):
        names = frozenset(spec.environment)
        group = groups.setdefault((names, spec.is_in_memory), _Group([], worker_environment(names, os.environ)))
        group.rewards.append((index, spec))
    return list(groups.values())


def _cause_of_death(status: int) -> str:
    if status == CHANNEL_CLOSED:
        return (
            "died: the reward closed the descriptors of its process (os.closerange, or a library that makes a daemon)"
        )
    if status == LOOP_BROKEN:
        return (
            "died: the reward stopped the event loop that its responses share, or cancelled tasks that are not its own"
        )
    return f"died ({describe_exit(status)})"


def _kill_all(workers: list[_Worker], owner: int) -> None:
    """Also runs at the interpreter's exit; a forked copy of the process must leave the workers alone."""
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.ask_to_end()
    while workers:
        workers.pop().process.kill()
