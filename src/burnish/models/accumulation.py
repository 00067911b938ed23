"""Sums over the micro-batches of an optimizer step before the step is made: metrics, signals and losses."""

from __future__ import annotations

import functools
import math

import torch

from burnish.forward.batch import Batch
from burnish.models.roles import Denominators, ObjectiveValue, Signals
from burnish.observability.metrics import MetricStore
from burnish.types import Metric


class Accumulation:
    """An optimizer step in progress: every micro-batch adds to it, and the role's `settle` ends it.

    Losses stay on their device. Reading each one would make the host wait for every micro-batch, so they are checked
    for non-finite values once, before the step.
    """

    def __init__(self, denominators: Denominators) -> None:
        self.denominators = denominators
        self.values: list[ObjectiveValue] = []
        """Values of the objective on the micro-batches; the losses without their graphs."""

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics that the objectives reported, merged over the micro-batches."""
        return MetricStore.of(value.metrics for value in self.values).merged()

    @property
    def signals(self) -> Signals:
        """Signals that the loop decides by, merged over the micro-batches."""
        return functools.reduce(Signals.merge, (value.signals for value in self.values), Signals())

    def odd_loss(self) -> float | None:
        """The first loss that is not finite, None if all are. Waits for the device, once for all losses."""
        numbers = torch.stack([value.loss.double() for value in self.values]).tolist() if self.values else []
        return next((number for number in numbers if not math.isfinite(number)), None)


def count_denominators(batch: Batch) -> Denominators:
    """Count trained tokens, and sequences and turns with at least one of them, over the whole batch."""
    loss_mask, turns = batch.host.loss_mask, batch.host.trained_turns
    return Denominators(int(loss_mask.sum()), int(loss_mask.any(axis=1).sum()), int(turns.sum()))
