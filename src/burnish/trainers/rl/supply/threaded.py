"""Sampling ahead in a thread, while the policy learns: the batches of `burnish.trainers.rl.supply`, in less time.

With `partial`, weights change within a response. A policy that publishes stops the rollout workers after the token in
progress. They take over the weights, read what they had begun as part of the prompt, and go on, so that no response is
older than it has to be. Which weights sample which token depends on timing, so such a run is not reproducible.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import Stopwatch
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.supply import SupplyAhead
from burnish.trainers.telemetry.groups import describe_renewal

_LOOK_SECONDS = 1.0
_END_SECONDS = 10.0


class AsideEngine(RolloutEngine, Protocol):
    """An engine that samples while the policy learns, because it has its own weights and processor."""

    def keep(self, weights: Weights) -> Weights:
        """A copy for `sync`, which the policy's updates do not change. It is freed with its last reference."""

    def renew(self, weights: Weights) -> None:
        """Like `sync`, and responses that are being sampled go on with these weights. Only for `partial`."""

    def stop(self) -> None:
        """End the call of `generate` that another thread has open, which raises."""


class SupplyAside(SupplyAhead):
    """Batches that a thread collects while the loop trains on earlier ones. Used as a context manager, which ends it.

    The engine belongs to whoever has the lock: the thread for a whole batch, the loop for an evaluation.
    """

    def __init__(self, collector: Collector, progress: Progress, beginning: Weights, engine: AsideEngine) -> None:
        """See `SupplyAhead`. `engine` is the collector's."""
        super().__init__(collector, progress, engine.keep(beginning))
        self._aside = engine
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[tuple[int, Weights, int] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="sampling ahead", daemon=True)
        self._thread.start()

    def __enter__(self) -> SupplyAside:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the thread. The batch in progress is dropped: every checkpoint has the batches that it needs."""
        self._orders.put(None)
        self._aside.stop()
        self._thread.join(_END_SECONDS)

    def publish(self, weights: Weights, step: int) -> None:
        """See `Supply`."""
        self._newest, self._newest_step = self._aside.keep(weights), step

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Supply`. Waits until the batch that is being sampled is done."""
        with self._lock, super().evaluating():
            yield

    def take(self, step: int, stopwatch: Stopwatch) -> Collected:
        """See `SupplyAhead`."""
        self._collected.pop(step - 1, None)
        for due in self._due(step):
            self._orders.put((due, self._newest, self._newest_step))
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
        """Wait until it is there, or never will be. The engine and the rewards have their own deadlines."""
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
                    collected = self._collect_ahead(due, weights, weights_step, stopwatch)
                collected.metrics.update(stopwatch.phases())
                with self._changed:
                    self._collected[due] = collected
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  boundary: raised again in the thread that waits
            self._failure = error


class SupplyPartial(SupplyAside):
    """Batches whose responses go on with new weights. `max_staleness` is then a bound: a batch is begun as early as
    without `partial`, with the newest weights, and ends with newer ones."""

    def __init__(self, collector: Collector, progress: Progress, beginning: Weights, engine: AsideEngine) -> None:
        """See `SupplyAside`."""
        self._renewing = threading.Lock()
        """So that a thread that begins a batch does not load older weights over newer ones."""
        self._steps = {beginning.version: 0}
        super().__init__(collector, progress, beginning, engine)

    def publish(self, weights: Weights, step: int) -> None:
        """Everything is sampled with these weights from now on, which the policy has after this step."""
        kept = self._aside.keep(weights)
        with self._renewing:
            # Nothing of older versions is left: the batches that they began have been trained on.
            oldest = step - self._max_staleness - 1
            self._steps = {v: s for v, s in self._steps.items() if s >= oldest} | {kept.version: step}
            self._newest, self._newest_step = kept, step
            self._aside.renew(kept)
            self._in_engine = kept

    def _load(self, weights: Weights) -> None:
        """Let the engine sample with the newest weights, whichever were the newest when the batch was ordered."""
        with self._renewing:
            super()._load(self._newest)

    def _collect_ahead(self, due: int, weights: Weights, weights_step: int, stopwatch: Stopwatch) -> Collected:
        """See `SupplyAhead`. Not only `weights` sample the batch, but all that follow while that takes."""
        collected = super()._collect_ahead(due, weights, weights_step, stopwatch)
        collected.metrics.update(describe_renewal(collected.sampled))
        return collected

    def _steps_of(self, weights: Weights, weights_step: int) -> Mapping[int, int]:
        """See `SupplyAhead`."""
        return self._steps
