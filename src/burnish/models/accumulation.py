"""What the micro-batches of an optimizer step add up before the step is made: metrics, signals and losses."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

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
        self._metrics = MetricStore()
        self.signals = Signals()
        self._losses: list[Tensor] = []

    @property
    def metrics(self) -> dict[str, Metric]:
        """The objectives' metrics, merged over the micro-batches."""
        return self._metrics.merged()

    @property
    def is_empty(self) -> bool:
        """Whether no micro-batch has been added."""
        return not self._losses

    def add(self, value: ObjectiveValue) -> None:
        """Add what the objective made of a micro-batch."""
        self._metrics.merge(value.metrics)
        self.signals = self.signals.merge(value.signals)
        self._losses.append(value.loss.detach())

    def odd_loss(self) -> float | None:
        """The first loss that is not finite, None if all are. Waits for the device, once for all losses."""
        numbers = torch.stack([loss.double() for loss in self._losses]).tolist() if self._losses else []
        return next((number for number in numbers if not math.isfinite(number)), None)


def trained_rows(batch: Batch) -> Batch:
    """The rows with at least one trained token, so that the others cost no forward pass."""
    return batch.select(np.flatnonzero(batch.host.loss_mask.any(axis=1)))


def count_denominators(batch: Batch) -> Denominators:
    """Count trained tokens, and sequences with at least one of them, over the whole batch."""
    loss_mask = batch.host.loss_mask
    return Denominators(int(loss_mask.sum()), int(loss_mask.any(axis=1).sum()))
