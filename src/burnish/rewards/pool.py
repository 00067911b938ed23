"""The pool of killable workers: assigns tasks, enforces time limits, and replaces killed workers.

A task is a few responses for one reward. The worker reports after each response, so the time limit applies per
response although a message carries several, and a kill only costs the response that was running.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

from burnish.errors import ConfigError, RewardError
from burnish.observability.timeline import WorkSpans
from burnish.outside.frames import GarbledError
from burnish.outside.plugins import describe_exit
from burnish.outside.user_processes import worker_environment
from burnish.rewards.calling import TracebackInWorkerError, timeout_detail
from burnish.rewards.inputs import Signature
from burnish.rewards.loading import RewardSpec
from burnish.rewards.messages import Answer, Idle, Judged, Ready, Refused, Violation
from burnish.rewards.outcome import Outcome, failure
from burnish.rewards.tasks import BEFORE_ALL, Task, TaskQueue
from burnish.rewards.worker import CHANNEL_CLOSED, LOOP_BROKEN
from burnish.rewards.worker_process import WorkerProcess
from burnish.types import RewardStatus

ASYNC_GRACE_SECONDS = 1.0  # an asynchronous worker enforces the limit itself, so it gets a little more time here
MAX_CONCURRENT = 128  # responses that an asynchronous reward awaits at once in one worker
MAX_PAUSE_SECONDS = 3600.0  # `poll` takes milliseconds as a 32-bit integer

Outcomes = dict[tuple[int, int], Outcome]


@dataclass(slots=True, eq=False)
class _Group:
    """Rewards that share workers, and the queue of each. They get the same environment variables, and either all of
    them need a fork of this process or none does."""

    rewards: list[tuple[int, RewardSpec]]
    environment: Mapping[str, str]
    queues: list[TaskQueue] = field(default_factory=list)

    def labels(self) -> str:
        return ", ".join(repr(spec.label) for _, spec in self.rewards)


@dataclass(slots=True, eq=False)
class _Worker:
    """One process and its current task. `deadline` is a time of the monotonic clock; None if idle."""

    process: WorkerProcess
    name: str
    group: _Group
    deadline: float | None
    ready: bool = False
    task: Task | None = None
    number: int = 0  # of the task, so that an answer to another task is not mistaken for this one's
    waiting: dict[int, None] = field(default_factory=dict)  # items without an outcome yet, in order
    since: float = 0.0


class WorkerPool:
    """Runs tasks on worker processes, which are started on demand.

    Up to `size` workers serve all rewards with the same environment variables. The values of these are fixed when the
    pool is made, also for workers that start later. Ask for the `signatures` before giving it tasks.
    """

    def __init__(self, specs: Sequence[RewardSpec], size: int, *, start_timeout_seconds: float = 60.0) -> None:
        self._specs = list(specs)
        self.size = size
        self._start_seconds = start_timeout_seconds
        self._groups = _groups(self._specs)
        self._queues = {queue.reward: queue for group in self._groups for queue in group.queues}
        self._context = copy_context()  # holds the functions that are at hand now, for workers that are forked later
        self._workers: list[_Worker] = []
        self._signatures: dict[int, Signature] = {}
        self._seconds = [0.0] * len(self._specs)  # busy time per reward
        self.spans = WorkSpans()
        self._numbers = itertools.count(1)  # of tasks that workers are given
        self._ages = itertools.count(BEFORE_ALL + 1)  # of tasks that are queued
        self._outcomes: Outcomes = {}
        # So that no worker survives a pool that nobody closed.
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())

    def signatures(self) -> dict[str, Signature]:
        """The signatures of the rewards by label, read by one worker per group. Raises what loading a reward raised."""
        with self._working():
            for group in self._groups:
                if not all(index in self._signatures for index, _ in group.rewards):
                    self._start(group)
            while any(not worker.ready for worker in self._workers):
                self._step()
        return {spec.label: self._signatures[index] for index, spec in enumerate(self._specs)}

    def begin(self, tasks: Iterable[Task] = ()) -> None:
        """Queue tasks, assign queued ones to idle workers and read finished outcomes, without waiting.

        Call it often, also without tasks. `run` returns the outcomes. After any error no worker and no task is left.
        """
        with self._working(tasks):
            self._assign()
            self._step(patience=0.0)
            self._assign()  # again, for workers that have just become idle

    def run(self, tasks: Iterable[Task]) -> Outcomes:
        """The outcome of every (reward, item), of these tasks and of those begun before.

        After any error, including Ctrl-C, no worker and no task is left.
        """
        with self._working(tasks):
            while self.is_busy:
                self._assign()
                self._step()
        outcomes, self._outcomes = self._outcomes, {}
        return outcomes

    def close(self) -> None:
        """Kill all workers and drop all tasks. A later `run` starts new workers. Idempotent."""
        for queue in self._queues.values():
            queue.clear()
        self._outcomes = {}
        _kill_all(self._workers, os.getpid())

    def take_seconds(self) -> dict[str, float]:
        """Seconds that workers were busy with each reward since the last call, by its label."""
        taken, self._seconds = self._seconds, [0.0] * len(self._specs)
        return {spec.label: seconds for spec, seconds in zip(self._specs, taken, strict=True)}

    @property
    def is_busy(self) -> bool:
        """True while a task waits or is under way."""
        return any(self._queues.values()) or any(worker.task for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.process.pid for worker in self._workers]

    @contextlib.contextmanager
    def _working(self, tasks: Iterable[Task] = ()) -> Iterator[None]:
        """Queue tasks and give them to living workers. After any error no worker and no task is left."""
        for task in tasks:
            self._queues[task.reward].add(task, next(self._ages))
        try:
            self._remove_dead()
            yield
        except BaseException:
            self.close()
            raise

    def _start(self, group: _Group) -> None:
        process = self._context.run(WorkerProcess, group.rewards, group.environment)
        taken = {worker.name for worker in self._workers}
        name = next(name for number in itertools.count() if (name := f"reward worker {number}") not in taken)
        self._workers.append(_Worker(process, name, group, deadline=time.monotonic() + self._start_seconds))

    def _assign(self) -> None:
        """Give idle workers the oldest tasks that may run now, and start workers for the rest of these."""
        for worker in self._workers:
            if worker.ready and worker.task is None:
                task = self._next_task(worker.group)
                if task is not None:
                    self._assign_to(worker, task)
        for group in self._groups:
            mine = [worker for worker in self._workers if worker.group is group]
            starting = sum(not worker.ready for worker in mine)  # each of these will take one of the tasks
            tasks = sum(self._num_tasks(queue) for queue in group.queues)
            for _ in range(min(self.size - len(mine), tasks - starting)):
                self._start(group)

    def _next_task(self, group: _Group) -> Task | None:
        """The oldest task whose reward may score more responses now. For an asynchronous reward it is a worker's share
        of all responses that wait, wherever they were begun: awaited together, they take as long as the slowest."""
        free = [queue for queue in group.queues if queue and self._room(queue.reward) > 0]
        if not free:
            return None
        queue = min(free, key=lambda queue: queue.age)
        if not self._awaits(queue.reward):
            return queue.take()
        # Busy workers take no share: their responses would wait until they are done.
        busy = sum(worker.task is not None for worker in self._workers if worker.group is group)
        share = -(-queue.responses // (self.size - busy))
        return queue.take_joined(min(share, self._room(queue.reward), MAX_CONCURRENT))

    def _num_tasks(self, queue: TaskQueue) -> int:
        """Count the tasks, one per worker, that the waiting responses may be divided into now."""
        tasks = queue.responses if self._awaits(queue.reward) else len(queue)
        return min(tasks, self._room(queue.reward))

    def _room(self, reward: int) -> int:
        """Count the further responses that the reward may begin to score now, in all workers together."""
        limit = self._specs[reward].concurrency
        if limit is None:
            return sys.maxsize
        busy = [worker for worker in self._workers if worker.task is not None and worker.task.reward == reward]
        # A worker that has sent its last outcome is about to be free, and counts as one until it says so: otherwise
        # another one would be started for the next response.
        return limit - sum(max(1, len(worker.waiting)) if self._awaits(reward) else 1 for worker in busy)

    def _awaits(self, reward: int) -> bool:
        """Return whether a worker awaits several responses of the reward at once."""
        return self._signatures[reward].asynchronous

    def _remove_dead(self) -> None:
        """Remove idle workers that ended, or sent something unasked, since the last call."""
        for worker in list(self._workers):
            if worker.task is None and worker.ready:
                self._drain(worker)

    def _assign_to(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.waiting, worker.number = task, dict.fromkeys(task.items), next(self._numbers)
        worker.since = time.monotonic()
        worker.deadline = worker.since + self._limit(task)
        worker.process.send(task.request(worker.number))

    def _limit(self, task: Task) -> float:
        grace = ASYNC_GRACE_SECONDS if self._awaits(task.reward) else 0.0
        return self._specs[task.reward].timeout_seconds + grace

    def _step(self, patience: float = math.inf) -> None:
        """Wait for the next message or deadline, at most `patience` seconds, and handle it."""
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        pause = min(patience, max(0.0, min(deadlines, default=0.0) - time.monotonic()))
        for worker in self._ready(pause):
            worker.process.flush()
            self._drain(worker)
        now = time.monotonic()
        for worker in list(self._workers):  # a copy, because workers are removed meanwhile
            if worker.deadline is not None and now > worker.deadline:
                self._drain(worker)  # an answer that arrived in time still counts
                if worker in self._workers and worker.deadline is not None and now > worker.deadline:
                    self._expire(worker)

    def _ready(self, seconds: float) -> list[_Worker]:
        """The workers that have sent something, or can receive more of their task."""
        poller = select.poll()
        by_descriptor = {worker.process.fileno(): worker for worker in self._workers}
        for worker in self._workers:
            worker.process.watch(poller)
        return [
            by_descriptor[descriptor]
            for descriptor, _ in poller.poll(math.ceil(1000 * min(seconds, MAX_PAUSE_SECONDS)))
        ]

    def _drain(self, worker: _Worker) -> None:
        """Handle everything that a worker has sent, and its end."""
        try:
            for answer in worker.process.receive():
                self._receive(worker, answer)
        except GarbledError as error:
            self._discard(worker, worker.process.kill, f"sent the training process {error} instead of an answer")
            return
        if worker.process.gone:
            self._discard(worker, worker.process.exit_status, "")

    def _receive(self, worker: _Worker, answer: Answer) -> None:
        # Every answer must be one that is due now. The user's code shares the process and could send anything.
        match answer:
            case Judged(task, item, outcome) if task == worker.number and item in worker.waiting:
                assert worker.task is not None
                self._outcomes[worker.task.reward, item] = outcome
                del worker.waiting[item]
                if not self._awaits(worker.task.reward):  # the next response gets the full limit
                    worker.deadline = time.monotonic() + self._limit(worker.task)
            case Idle(task) if task == worker.number and worker.task is not None and not worker.waiting:
                self._note_work(worker, worker.task)
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

    def _note_work(self, worker: _Worker, task: Task) -> None:
        self._seconds[task.reward] += time.monotonic() - worker.since
        self.spans.add(worker.name, self._specs[task.reward].label, worker.since)

    def _expire(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        if worker.task is None:
            raise RewardError(
                f"the rewards {worker.group.labels()} were not loaded within {self._start_seconds:g} seconds",
                remedy="do less when the module is imported and the class is constructed, or raise "
                "scoring.start_timeout_seconds",
            )
        spec = self._specs[worker.task.reward]
        lost = failure(RewardStatus.TIMEOUT, timeout_detail(spec.label, spec.timeout_seconds))
        self._settle(worker, lost)

    def _discard(self, worker: _Worker, end: Callable[[], int], reason: str) -> None:
        """End a worker that has died or sent an invalid message. The response that was running is lost."""
        self._workers.remove(worker)
        status = end()
        if worker.task is not None:
            what = f"the worker process of reward {self._specs[worker.task.reward].label!r} "
            self._settle(worker, failure(RewardStatus.ERROR, what + (reason or _describe_death(status))))
        elif not worker.ready:
            what = f"a worker process that was loading {worker.group.labels()} "
            raise RewardError(what + (reason or _describe_death(status)), remedy="look at its output")

    def _settle(self, worker: _Worker, lost: Outcome) -> None:
        """Give the response that was running the outcome `lost`, and queue the others again."""
        task, waiting = worker.task, list(worker.waiting)
        assert task is not None
        self._note_work(worker, task)
        if self._signatures[task.reward].batched:
            guilty, rest = waiting, []
        elif self._awaits(task.reward) and len(waiting) > 1:
            guilty, rest = [], waiting  # any of them may be the cause, so each is tried again alone
        else:
            guilty, rest = waiting[:1], waiting[1:]
        for item in guilty:
            self._outcomes[task.reward, item] = lost
        self._queues[task.reward].put_back(task.only(item) for item in rest)


def _groups(specs: Sequence[RewardSpec]) -> list[_Group]:
    """Rewards grouped by equal `environment`, in the order of the run file. Only functions in memory run in forks: all
    others get an interpreter that holds nothing of this program."""
    groups: dict[tuple[frozenset[str], bool], _Group] = {}
    for index, spec in enumerate(specs):
        names = frozenset(spec.environment)
        group = groups.setdefault((names, spec.is_in_memory), _Group([], worker_environment(names, os.environ)))
        group.rewards.append((index, spec))
        group.queues.append(TaskQueue(index))
    return list(groups.values())


def _describe_death(status: int) -> str:
    if status == CHANNEL_CLOSED:
        return (
            "died: the reward closed the file descriptors of its process (os.closerange, or a library that daemonizes)"
        )
    if status == LOOP_BROKEN:
        return "died: the reward stopped the event loop that all responses share, or cancelled tasks of other responses"
    return f"died ({describe_exit(status)})"


def _kill_all(workers: list[_Worker], owner: int) -> None:
    """Kill all workers. Runs at the interpreter's exit too, where a forked copy of the process must not kill them."""
    if os.getpid() != owner:
        return
    for worker in workers:  # ask all first, so that they end at the same time
        worker.process.ask_to_end()
    while workers:
        workers.pop().process.kill()
