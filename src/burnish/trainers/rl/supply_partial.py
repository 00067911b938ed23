"""Sampling ahead with weights that change within a response (`partial`): every token by the newest there are.

A policy that publishes stops the rollout workers after the token in progress. They take over the weights, read what
they had begun as part of the prompt, and go on, so that no response is older than it has to be. Which weights sample
which token depends on how fast everything is, so that the numbers of such a run are not those of another one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from burnish.models.weights import Weights
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.supply_aside import AsideEngine, SupplyAside
from burnish.trainers.telemetry.staleness import describe_renewal
from burnish.trainers.telemetry.stopwatch import Stopwatch


class SupplyPartial(SupplyAside):
    """Batches whose responses go on with new weights. `max_staleness` is then a bound: a batch is begun as early as
    without `partial`, with the newest weights, and ends with newer ones."""

    def __init__(
        self,
        collector: Collector,
        progress: Progress,
        beginning: Weights,
        engine: AsideEngine,
        **timing: int,
    ) -> None:
        """See `SupplyAside`."""
        self._renewing = threading.Lock()
        """So that a thread that begins a batch does not load older weights over newer ones."""
        self._steps = {beginning.version: 0}
        super().__init__(collector, progress, beginning, engine, **timing)

    def publish(self, weights: Weights, step: int) -> None:
        """Everything is sampled with these weights from now on, which the policy has after this step."""
        kept = self._aside.keep(weights)
        with self._renewing:
            # Of older versions there is nothing left: the batches that they began are trained.
            oldest = step - self._max_staleness - 1
            self._steps = {v: s for v, s in self._steps.items() if s >= oldest} | {kept.version: step}
            self._newest = kept, step
            self._aside.renew(kept)
            self._in_engine = kept

    def _load(self, weights: Weights) -> None:
        """Let the engine sample with the newest weights, whichever were the newest when the batch was ordered."""
        with self._renewing:
            super()._load(self._newest[0])

    def _collect(self, due: int, weights: Weights, weights_step: int, stopwatch: Stopwatch) -> Collected:
        """See `Supply`. Not only `weights` sample the batch, but all that follow while that takes."""
        collected = super()._collect(due, weights, weights_step, stopwatch)
        collected.metrics.update(describe_renewal(collected.sampled))
        return collected

    def _steps_of(self, weights: Weights, weights_step: int) -> Mapping[int, int]:
        """See `Supply`."""
        return self._steps
