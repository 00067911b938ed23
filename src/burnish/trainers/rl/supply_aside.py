"""Sampling ahead in a thread, while the policy learns: the batches of `burnish.trainers.rl.supply`, in less time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.supply import Supply
from burnish.trainers.telemetry.stopwatch import Stopwatch

_LOOK_SECONDS = 1.0
_END_SECONDS = 10.0


class AsideEngine(RolloutEngine, Protocol):
    """An engine that samples while the policy learns, because it has weights and a processor of its own."""

    def keep(self, weights: Weights) -> Weights:
        """A copy for `sync`, which stays as it is when the policy goes on. It is let go of with its last reference."""
        ...

    def renew(self, weights: Weights) -> None:
        """Like `sync`, and responses that are being sampled go on with these weights. Only for `partial`."""
        ...

    def stop(self) -> None:
        """End the call of `generate` that another thread has open, which raises."""
        ...


class SupplyAside(Supply):
    """Batches that a thread collects while the loop trains on earlier ones. Used as a context manager, which ends it.

    The engine belongs to whoever has the lock: the thread for a whole batch, the loop for an evaluation.
    """

    def __init__(
        self,
        collector: Collector,
        progress: Progress,
        beginning: Weights,
        engine: AsideEngine,
        *,
        max_staleness: int,
        last_step: int,
    ) -> None:
        """See `Supply`. `engine` is the collector's."""
        kept = engine.keep(beginning)
        super().__init__(collector, progress, kept, max_staleness=max_staleness, last_step=last_step)
        self._aside = engine
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[int, Weights, int] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sampling ahead", daemon=True)
        self._thread.start()

    def __enter__(self) -> SupplyAside:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the thread. What it is sampling is given up: every checkpoint has the batches that it needs."""
        self._orders.put(None)
        self._aside.stop()
        self._thread.join(_END_SECONDS)

    def publish(self, weights: Weights, step: int) -> None:
        """See `Supply`."""
        self._newest = self._aside.keep(weights), step

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Supply`. Waits until the batch that is being sampled is done."""
        with self._lock, super().evaluating():
            yield

    def take(self, step: int, stopwatch: Stopwatch) -> Collected:
        """See `Supply`."""
        self._collected.pop(step - 1, None)
        for due in self._due(step):
            self._orders.put((due, *self._newest))
            self._asked = due
        with stopwatch.phase("wait"):
            self._until(lambda: step in self._collected)
        if step not in self._collected:
            raise self._failure or RolloutError(
                f"the thread that samples ahead has ended before the batch of step {step}",
                remedy="start the run again: it continues from its newest checkpoint; please report this",
            )
        return self._collected[step]

    def _settle(self) -> None:
        self._until(lambda: self._asked in self._collected or self._asked <= self._progress.step)

    def _until(self, there: Callable[[], bool]) -> None:
        """Wait until it is there, or never will be. The engine and the rewards have deadlines of their own."""
        with self._changed:
            while not there() and self._thread.is_alive():
                self._changed.wait(_LOOK_SECONDS)

    def _work(self) -> None:
        """The thread: one batch after another, each with the weights that it was ordered with."""
        try:
            while (order := self._orders.get()) is not None:
                due, weights, weights_step = order
                stopwatch = Stopwatch()
                with self._lock:
                    collected = self._collect(due, weights, weights_step, stopwatch)
                collected.metrics.update(stopwatch.phases())
                with self._changed:
                    self._collected[due] = collected
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  boundary: raised again in the thread that waits
            self._failure = error
