"""Rollout workers: an engine in each of several processes, behind the protocol of one engine.

Requests are cut into portions by a rule that knows nothing of the workers, and whoever is free takes the next one. A
sample is a function of its request and the weights, so a portion whose worker is lost is given to another one: the
rollouts are the same, and nothing is lost but time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from burnish.distributed.handles import PublishedElsewhere
from burnish.distributed.peers import END_SECONDS, ProcessRole, RoleLostError, Stop, ask_all
from burnish.distributed.weight_transfer import SealedWeights, SharedWeights
from burnish.errors import BurnishError, RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore, total
from burnish.observability.timeline import WorkSpan
from burnish.rollouts.engine import OnFinished, Requests, RestingEngine, Sampling
from burnish.rollouts.portions import Portion, cut, in_order
from burnish.types import Metric, Rollout

MAX_LOSSES = 3
"""A portion over which this many workers were lost is not given to another one."""
Done = tuple[int, list[Rollout], Mapping[str, Metric]]
RETRY_SECONDS = 120.0
"""After which a worker that could not be started again is tried once more: its node may be back."""
_HOUR = 3600.0
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Worker:
    """A seat of the pool. `start` makes its process, again where that was lost, and returns the handle to its engine;
    it gives up when its event is set, and is None where the process is not the pool's to start."""

    engine: ProcessRole
    start: Callable[[threading.Event], ProcessRole] | None = None
    policy: str | None = None
    """The role in the same process whose weights the engine shares; None for an engine with a copy."""
    version: int | None = None
    restarts: list[float] = field(default_factory=list)
    """When it was started again."""
    gone: bool = False
    """Whether it was lost and has no new process yet. Until it has, it gets no work, so that it cannot count as lost
    over prompts again."""
    returning: threading.Thread | None = None
    """What starts its process again, or did so last. Nobody waits for it: calls go on with the others."""
    tried: float = 0.0
    """When it was lost, or its start failed, last."""

    @property
    def name(self) -> str:
        return self.engine.process.name

    @property
    def standing(self) -> str:
        """The state of the worker: the version of its weights, and what its process is doing."""
        version = "its first weights" if self.version is None else f"version {self.version}"
        return "lost" if self.gone else f"{version}, {self.engine.process.standing}"

    def take_spans(self) -> Sequence[WorkSpan]:
        """See `WorkingProcess`."""
        return self.engine.process.take_spans()

    @property
    def is_returning(self) -> bool:
        """True while the worker is being started again."""
        return self.returning is not None and self.returning.is_alive()

    def may_restart(self, limit: int) -> bool:
        """Return whether the worker was started again fewer than `limit` times in the last hour."""
        recent = [moment for moment in self.restarts if time.monotonic() - moment < _HOUR]
        return self.start is not None and len(recent) < limit


class RolloutPool(RestingEngine):
    """`RolloutEngine` over the workers. A context manager, which ends their processes.

    lanes: portions of a call. restarts: of one worker in an hour. say: tells the user what became of a worker. write:
    copies weights of this process to where the workers read them. partial: `renew` reaches responses that are being
    sampled, for which every engine has to be a `StoppableEngine`. rests: every engine is a `RestingEngine` that rests.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        lanes: int,
        restarts: int,
        say: Callable[[str], None],
        write: Callable[[Weights], SealedWeights] = SharedWeights.write,
        partial: bool = False,
        rests: bool = False,
    ) -> None:
        self._write = write
        self._partial = partial
        self._rests = rests
        self._stops: list[Stop] = []
        self._lock = threading.Lock()
        """Around `_stops`, and around version and weights, which change together."""
        self._workers = list(workers)
        self._lanes = lanes
        self._restarts = restarts
        self._say = say
        self._closed = threading.Event()
        self._version: int | None = None
        self._weights: SealedWeights | None = None
        self._metrics = MetricStore()
        self._call: _Call | None = None
        """The open one."""
        self._changed = threading.Condition()
        """Around what the open call still needs, and who is gone or returning."""

    def __enter__(self) -> RolloutPool:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._closed.set()
        for worker in self._workers:
            if worker.start is not None:
                worker.engine.process.close()
        for worker in self._workers:
            if worker.returning is not None and worker.returning is not threading.current_thread():
                worker.returning.join(END_SECONDS)
        self._weights = None

    def keep(self, weights: Weights) -> Weights:
        """A copy for `sync`, where the workers read it, which stays as it is when the policy goes on."""
        return self._shared(weights).weights()

    def sync(self, weights: Weights) -> None:
        """Copy the weights for the workers, each of which takes them over before its next portion."""
        shared = self._shared(weights) if any(worker.policy is None for worker in self._workers) else None
        with self._lock:
            self._version, self._weights = weights.version, shared
        self._bring_back()

    def renew(self, weights: Weights) -> None:
        """Like `sync`, and responses that are being sampled go on with these weights: workers stop after the token in
        progress, take them over, and read what they had begun as part of the prompt."""
        self.sync(weights)
        with self._lock:
            for stop in self._stops:
                stop.call()

    def _shared(self, weights: Weights) -> SealedWeights:
        """The weights where the workers read them, written there unless they are there already."""
        tensors = weights.tensors
        if isinstance(tensors, SealedWeights):
            return tensors
        return tensors.share() if isinstance(tensors, PublishedElsewhere) else self._write(weights)

    def stop(self) -> None:
        """End the call of `generate` that another thread has open, with the processes that are at work for it."""
        call = self._call
        if call is None:
            return
        call.fail(RolloutError("sampling was stopped", remedy="nothing: the run is ending"))
        for worker in self._present():
            if worker.start is not None:
                worker.engine.process.kill()

    def rest(self) -> None:
        """See `RestingEngine`. All engines fall asleep before any process trains."""
        if self._rests:
            engines = [worker.engine for worker in self._present()]
            message: tuple[object, ...] = ("call", engines[0].name, "rest", (), {})
            processes = [engine.process for engine in engines]
            ask_all(processes, message, what="engine.rest", seconds=engines[0].seconds)

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return, and forget, the workers' measurements for the rollouts that they gave, and how many were lost."""
        with self._lock:
            store, self._metrics = self._metrics, MetricStore()
        return store.merged()

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """See `RolloutEngine`. `on_finished` gets all responses. One call at a time.

        Raises what a worker's engine raises, and RolloutError when no worker is left, or when one portion has cost
        `MAX_LOSSES` of them."""
        portions = cut(requests, self._lanes, sampling.max_response_tokens)
        call = _Call(portions, sampling, seed, step, self._changed)
        threads: list[threading.Thread] = []
        rollouts: list[Rollout] = []
        measured: dict[int, Mapping[str, Metric]] = {}
        self._call = call  # before anyone is at work, so that `stop` misses no one
        try:
            for worker in self._workers:  # those that are gone, too: they may come back in time
                thread = threading.Thread(target=self._serve, args=(worker, call), name=worker.name, daemon=True)
                thread.start()
                threads.append(thread)
            for index, done, metrics in call.results(lambda: self._may_go_on(threads)):
                rollouts += done
                measured[index] = metrics
                if on_finished is not None:
                    on_finished(done)
        finally:
            call.end()
            self._call = None
            for thread in threads:
                thread.join()
        with self._lock:
            for _, metrics in sorted(measured.items()):  # sums of floats depend on their order
                self._metrics.merge(metrics)
        return in_order(requests, rollouts)

    def processes(self) -> list[Worker]:
        """The workers with their own process."""
        return [worker for worker in self._workers if worker.policy is None]

    def _present(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.gone]

    def _may_go_on(self, threads: Sequence[threading.Thread]) -> bool:
        """Return whether a call has a live thread, and any worker is there or is being started again."""
        with self._changed:
            has_workers = any(worker.is_returning or not worker.gone for worker in self._workers)
        return has_workers and any(thread.is_alive() for thread in threads)

    def _serve(self, worker: Worker, call: _Call) -> None:
        """The thread of one worker: takes portions as long as there are any and the worker can be had."""
        while (portion := call.take(lambda: not worker.gone)) is not None:
            try:
                call.finish(portion, *self._sample(worker, portion, call))
            except RoleLostError as error:
                if error.process != worker.name:  # the trainer whose weights it was to take over
                    return call.fail(error)
                call.give_back(portion, error)
                if worker.start is None:
                    return call.fail(error)
                if not call.goes_on:
                    return None
                with self._lock:
                    self._metrics.add("rollout/lost_workers", total(1))
                self._revive(worker, error)
            except Exception as error:  # noqa: BLE001  boundary: raised again in the thread that asked
                return call.fail(error)
        return None

    def _sample(self, worker: Worker, portion: Portion, call: _Call) -> tuple[list[Rollout], Mapping[str, Metric]]:
        """The rollouts of the portion, with the weights of now, or of every moment if the pool is partial."""
        if not self._partial:
            self._update(worker)
            return worker.engine.generate(portion.requests, call.sampling, seed=call.seed, step=call.step)
        while portion.requests:
            with self._stoppable() as stop:  # before the update, so that newer weights are not missed
                self._update(worker)
                rollouts, portion.requests, metrics = worker.engine.generate_until(
                    portion.requests, call.sampling, seed=call.seed, step=call.step, stop=stop
                )
            portion.rollouts += rollouts
            portion.metrics.merge(metrics)
        return portion.rollouts, portion.metrics.merged()

    @contextmanager
    def _stoppable(self) -> Iterator[Stop]:
        """Provide a stop that `renew` can call while the body runs."""
        with Stop() as stop:
            with self._lock:
                self._stops.append(stop)
            try:
                yield stop
            finally:
                with self._lock:
                    self._stops.remove(stop)

    def _update(self, worker: Worker) -> None:
        """Let the worker sample with the weights of now. A new process has the weights of the run file."""
        with self._lock:
            version, weights = self._version, self._weights
        if version is None or worker.version == version:
            return
        if worker.policy is not None:
            worker.engine.adopt(worker.policy)
        elif weights is not None:
            worker.engine.load(weights)
        worker.version = version

    def _revive(self, worker: Worker, lost: RoleLostError) -> None:
        """Have the process of a lost worker started again, within the limit."""
        start = worker.start if worker.may_restart(self._restarts) else None
        if start is None:
            limit = f"{self._restarts} restarts an hour is the limit (cluster.restarts)"
            self._say(f"{lost.message}; it is not started again: {limit}")
        else:
            then = "its requests go to another worker, and it is started again: nothing to do"
            self._say(f"{lost.message}; {then}")
        with self._changed:
            worker.gone, worker.tried = True, time.monotonic()
            if start is not None:
                self._begin_return(worker, start)

    def _bring_back(self) -> None:
        """Try once more to start workers that are gone."""
        with self._changed:
            for worker in self._workers:
                rested = time.monotonic() - worker.tried >= RETRY_SECONDS
                may = worker.gone and rested and worker.may_restart(self._restarts)
                if may and worker.start is not None and not worker.is_returning:
                    self._begin_return(worker, worker.start)

    def _begin_return(self, worker: Worker, start: Callable[[threading.Event], ProcessRole]) -> None:
        thread = threading.Thread(target=self._return, args=(worker, start), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many
            self._say(f"{worker.name} cannot be started again: {error}")
        else:
            worker.returning = thread

    def _return(self, worker: Worker, start: Callable[[threading.Event], ProcessRole]) -> None:
        """Give the worker a new process."""
        worker.restarts.append(time.monotonic())
        worker.version = None
        try:
            engine = start(self._closed)
        except Exception as error:  # noqa: BLE001  boundary: whatever building its roles raises there
            if not self._closed.is_set():
                why = error.message if isinstance(error, BurnishError) else error
                self._say(f"{worker.name} cannot be started again: {why}")
            worker.tried = time.monotonic()
            return
        with self._lock:
            if not (has_ended := self._closed.is_set()):
                worker.engine = engine
        if has_ended:
            engine.process.close()
            return
        with self._changed:
            worker.gone = False
            self._changed.notify_all()
        self._say(f"{worker.name} is back")


class _Call:
    """One call of `generate`, as its threads see it: portions to take, and what became of them. `changed` is notified
    of each."""

    def __init__(
        self, portions: Sequence[Portion], sampling: Sampling, seed: int, step: int, changed: threading.Condition
    ) -> None:
        self.sampling = sampling
        self.seed = seed
        self.step = step
        self._waiting = deque(portions)
        self._count = self._open = len(portions)
        self._ended = False
        self._changed = changed
        self._results: queue.SimpleQueue[Done | Exception] = queue.SimpleQueue()

    def take(self, is_there: Callable[[], bool]) -> Portion | None:
        """The next portion for a worker. Waits while there is none, because one may be given back, and until the worker
        is there; None when there will be no more."""
        with self._changed:
            while self.goes_on:
                if self._waiting and is_there():
                    return self._waiting.popleft()
                self._changed.wait(_LOOK_SECONDS)
        return None

    @property
    def goes_on(self) -> bool:
        """True while anything is still to be sampled."""
        return self._open > 0 and not self._ended

    def finish(self, portion: Portion, rollouts: list[Rollout], metrics: Mapping[str, Metric]) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
        self._results.put((portion.index, rollouts, metrics))

    def give_back(self, portion: Portion, lost: RoleLostError) -> None:
        """Let another worker have it, unless it has cost too many."""
        portion.losses += 1
        if portion.losses >= MAX_LOSSES:
            prompts = ", ".join(request.name for request in portion.requests[:5])
            self.fail(
                RolloutError(
                    f"{portion.losses} workers were lost over the same prompts ({prompts}), the last one so: {lost}",
                    remedy="see why a worker ends there: too little memory, or the engine itself",
                )
            )
            return
        with self._changed:
            self._waiting.appendleft(portion)
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the call with an error."""
        self._results.put(error)
        self.end()

    def end(self) -> None:
        """Let every thread finish: nothing more is sampled."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def results(self, can_go_on: Callable[[], bool]) -> Iterator[Done]:
        """Each portion's number, rollouts and metrics, as they are done. Raises the error that ended the call, and
        RolloutError when it cannot go on."""
        for _ in range(self._count):
            while True:
                try:
                    result = self._results.get(timeout=_LOOK_SECONDS)
                    break
                except queue.Empty:
                    if not can_go_on() and self._results.empty():
                        raise RolloutError(
                            "no rollout worker is left to sample with",
                            remedy="see above what became of them; raise cluster.restarts, or give them more memory",
                        ) from None
            if isinstance(result, Exception):
                raise result
            yield result
