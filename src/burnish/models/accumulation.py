"""What the micro-batches of one optimizer step leave until the step is made: metrics, signals and losses."""

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
    """An optimizer step that has begun: every micro-batch adds to it, and `settle` of the role ends it.

    Losses stay on their device. Reading each one would make the host wait for every micro-batch, so whether they are
    finite is asked once, before the step.
    """

    def __init__(self, denominators: Denominators) -> None:
        self.denominators = denominators
        self._metrics = MetricStore()
        self.signals = Signals()
        self._losses: list[Tensor] = []

    @property
    def metrics(self) -> dict[str, Metric]:
        """What the objectives reported, merged over the micro-batches."""
        return self._metrics.merged()

    @property
    def is_empty(self) -> bool:
        """Whether no micro-batch has been added."""
        return not self._losses

    def add(self, value: ObjectiveValue) -> None:
        """Add what a micro-batch came to."""
        self._metrics.merge(value.metrics)
        self.signals = self.signals.merge(value.signals)
        self._losses.append(value.loss.detach())

    def odd_loss(self) -> float | None:
        """The first loss that is not finite, None where all of them are. Waits for the device, once for all losses."""
        numbers = torch.stack([loss.double() for loss in self._losses]).tolist() if self._losses else []
        return next((number for number in numbers if not math.isfinite(number)), None)


def trained_rows(batch: Batch) -> Batch:
    """The rows with at least one trained token; the others cost no forward pass."""
    return batch.select(np.flatnonzero(batch.host.loss_mask.any(axis=1)))


def count_denominators(batch: Batch) -> Denominators:
    """Trained tokens, and sequences with at least one, of the whole batch."""
    loss_mask = batch.host.loss_mask
    return Denominators(int(loss_mask.sum()), int(loss_mask.any(axis=1).sum()))
