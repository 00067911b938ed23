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
from dataclasses import dataclass, field

from burnish.distributed.handles import PublishedElsewhere
from burnish.distributed.handover import SharedWeights
from burnish.distributed.processes import ProcessRole, RoleLostError
from burnish.errors import BurnishError, RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore, total
from burnish.rollouts.engine import OnFinished, Sampling
from burnish.rollouts.portions import Portion, cut, in_order
from burnish.types import Metric, Rollout, RolloutRequest

MAX_LOSSES = 3
"""A portion over which this many workers were lost is not given to another one."""
_HOUR = 3600.0
_LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Worker:
    """A seat of the pool. `start` makes its process, again where that was lost, and returns the handle to its engine;
    it is None where the process is not the pool's to start."""

    engine: ProcessRole
    start: Callable[[], ProcessRole] | None = None
    policy: str | None = None
    """The role in the same process whose weights the engine shares; None for an engine with a copy."""
    version: int | None = None
    restarts: list[float] = field(default_factory=list)
    """When it was started again."""
    gone: bool = False
    """Whether it was lost for good. It gets no more work, so it cannot count as lost over prompts again."""

    @property
    def name(self) -> str:
        return self.engine.process.name

    def may_restart(self, limit: int) -> bool:
        """Whether it was started again less often than that in the last hour."""
        recent = [moment for moment in self.restarts if time.monotonic() - moment < _HOUR]
        return self.start is not None and len(recent) < limit


class RolloutPool:
    """`RolloutEngine` over the workers. A context manager, which ends their processes.

    lanes: portions of a call. restarts: of one worker in an hour. say: tells the user what became of a worker.
    """

    def __init__(self, workers: Sequence[Worker], *, lanes: int, restarts: int, say: Callable[[str], None]) -> None:
        self._workers = list(workers)
        self._lanes = lanes
        self._restarts = restarts
        self._say = say
        self._version: int | None = None
        self._weights: SharedWeights | None = None
        self._metrics = MetricStore()

    def __enter__(self) -> RolloutPool:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            if worker.start is not None:
                worker.engine.process.close()
        if self._weights is not None:
            self._weights.close()

    def sync(self, weights: Weights) -> None:
        """Copy the weights for the workers, each of which takes them over before its next portion."""
        if any(worker.policy is None for worker in self._workers):
            earlier, tensors = self._weights, weights.tensors
            self._weights = tensors.share() if isinstance(tensors, PublishedElsewhere) else SharedWeights.write(weights)
            if earlier is not None:
                earlier.close()
        self._version = weights.version

    def take_metrics(self) -> Mapping[str, Metric]:
        """What the workers have measured since the last call, and how many were lost."""
        store, self._metrics = self._metrics, MetricStore()
        for worker in self._present():
            try:
                store.merge(worker.engine.ask("take_metrics"))
            except RoleLostError as error:
                if worker.start is None:
                    raise
                self._say(str(error))  # its numbers are gone with it; it starts again when there is work for it
        return store.merged()

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        """See `RolloutEngine`. Raises what a worker's engine raises, and RolloutError when no worker is left, or when
        one portion has cost `MAX_LOSSES` of them."""
        call = _Call(cut(requests, self._lanes, sampling.max_response_tokens), sampling, seed, step)
        threads = [
            threading.Thread(target=self._serve, args=(worker, call), name=worker.name, daemon=True)
            for worker in self._present()
        ]
        for thread in threads:
            thread.start()
        rollouts: list[Rollout] = []
        try:
            for done in call.results(threads):
                rollouts += done
                if on_finished is not None:
                    on_finished(done)
        finally:
            call.end()
            for thread in threads:
                thread.join()
        return in_order(requests, rollouts)

    def _present(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.gone]

    def _serve(self, worker: Worker, call: _Call) -> None:
        """The thread of one worker: takes portions as long as there are any and the worker can be had."""
        while (portion := call.take()) is not None:
            try:
                self._update(worker)
                done = worker.engine.generate(portion.requests, call.sampling, seed=call.seed, step=call.step)
                call.finish(portion, done)
            except RoleLostError as error:
                call.give_back(portion, error)
                if worker.start is None:
                    return call.fail(error)
                self._metrics.add("rollout/lost_workers", total(1))
                if not self._revive(worker, error):
                    return None
            except Exception as error:  # noqa: BLE001  boundary: raised again in the thread that asked
                return call.fail(error)
        return None

    def _update(self, worker: Worker) -> None:
        """Let the worker sample with the weights of now. One of a new process has those of the run file."""
        if self._version is None or worker.version == self._version:
            return
        if worker.policy is not None:
            worker.engine.adopt(worker.policy)
        elif self._weights is not None:
            worker.engine.load(self._weights)
        worker.version = self._version

    def _revive(self, worker: Worker, lost: RoleLostError) -> bool:
        """Start the process of a lost worker again, within the limit; whether there is one now."""
        if worker.start is None or not worker.may_restart(self._restarts):
            self._say(f"{lost}; it is not started again: {self._restarts} restarts an hour is the limit")
            worker.gone = True
            return False
        self._say(f"{lost}; what it was asked for goes to another worker, and it is started again")
        worker.restarts.append(time.monotonic())
        worker.version = None
        try:
            worker.engine = worker.start()
        except BurnishError as error:
            self._say(f"{worker.name} cannot be started again: {error}")
            worker.gone = True
            return False
        return True


class _Call:
    """One call of `generate`, as its threads see it: portions to take, and what became of them."""

    def __init__(self, portions: Sequence[Portion], sampling: Sampling, seed: int, step: int) -> None:
        self.sampling = sampling
        self.seed = seed
        self.step = step
        self._waiting = deque(portions)
        self._count = self._open = len(portions)
        self._ended = False
        self._changed = threading.Condition()
        self._results: queue.SimpleQueue[list[Rollout] | Exception] = queue.SimpleQueue()

    def take(self) -> Portion | None:
        """The next portion. Waits while others are being sampled, because one may be given back; None at the end."""
        with self._changed:
            while self._goes_on() and not self._waiting:
                self._changed.wait(_LOOK_SECONDS)
            return self._waiting.popleft() if self._goes_on() else None

    def _goes_on(self) -> bool:
        return self._open > 0 and not self._ended

    def finish(self, portion: Portion, rollouts: list[Rollout]) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
        self._results.put(rollouts)

    def give_back(self, portion: Portion, lost: RoleLostError) -> None:
        """Let another worker have it, unless it has cost too many."""
        portion.losses += 1
        if portion.losses >= MAX_LOSSES:
            prompts = ", ".join(request.prompt_id for request in portion.requests[:5])
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
        """Let every thread come to its end: nothing more is sampled."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def results(self, threads: Sequence[threading.Thread]) -> Iterator[list[Rollout]]:
        """The rollouts of each portion, as they are done. Raises the error that ended the call, and RolloutError when
        no thread is left to go on."""
        for _ in range(self._count):
            while True:
                try:
                    result = self._results.get(timeout=_LOOK_SECONDS)
                    break
                except queue.Empty:
                    if not any(thread.is_alive() for thread in threads) and self._results.empty():
                        raise RolloutError(
                            "no rollout worker is left to sample with",
                            remedy="see above what became of them; raise cluster.restarts, or give them more memory",
                        ) from None
            if isinstance(result, Exception):
                raise result
            yield result
