"""Base of policy and critic: optimizer steps that are accumulated in parts."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from burnish.errors import DivergenceError
from burnish.forward.batch import Batch
from burnish.forward.lanes import Lanes, take_gradients
from burnish.forward.scoring import ResponseScorer
from burnish.forward.team import Gradients
from burnish.models.role_optimizer import RoleOptimizer
from burnish.models.roles import (
    Denominators,
    ObjectiveValue,
    RowEntropies,
    Signals,
    TrainingState,
    Update,
    count_denominators,
)
from burnish.models.value_head import ValueScorer
from burnish.observability.metrics import MetricStore
from burnish.types import Metric

ObjectiveT = TypeVar("ObjectiveT")


class LearnerByParts(ABC, Generic[ObjectiveT]):
    """A role whose optimizer step is `accumulate` for each part, then `settle`."""

    def __init__(
        self,
        scorer: ResponseScorer | ValueScorer,
        optimizers: list[RoleOptimizer],
        *,
        tokens_per_microbatch: int,
        lanes: Lanes,
    ) -> None:
        """optimizers: of everything that a backward pass reaches, the role's own first."""
        self._scorer = scorer
        self._optimizers = optimizers
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._denominators: Denominators | None = None
        """Of the step in progress, if there is one."""
        self._values: list[ObjectiveValue] = []
        """Values of the objective on the step's micro-batches. Losses stay on their device: reading each one would make
        the host wait for every micro-batch, so they are checked for non-finite values once, before the step."""
        self._awake: Callable[[], AbstractContextManager[None]] = nullcontext
        """Brings the role's weights back where they rest between its passes."""

    @property
    def version(self) -> int:
        """Optimizer steps begun so far."""
        return self._optimizers[0].version

    def _passes(self) -> AbstractContextManager[None]:
        """Around the passes of a part."""
        return nullcontext()

    @abstractmethod
    def _forward(
        self, part: Batch, objective: ObjectiveT, denominators: Denominators
    ) -> tuple[Sequence[Tensor], ObjectiveValue]:
        """The pass over a micro-batch: the scores that all weights have a part in, and its share of the loss."""

    def update(
        self,
        batch: Batch,
        objective: ObjectiveT,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        """One optimizer step; see `roles.Policy`.

        Denominators are counted over the whole batch first. Rows without a trained token cost no forward pass, and
        scores are 0 at positions that are not trained on. A batch without any trained token moves no weight, but counts
        as a step in `version` (metric `.../empty_updates`).

        denominators: of the minibatch that `batch` is part of, if its other rows have no gradient. If no row is
        left at all, the step has a gradient of 0, which still moves weights by momentum and decay.
        """
        self._denominators = None
        with self._awake():
            self.accumulate(batch, objective, denominators or count_denominators(batch))
            return self.settle(planned_step)

    def accumulate(self, batch: Batch, objective: ObjectiveT, denominators: Denominators) -> None:
        """Add the gradient of one part of the step; see `roles.Policy`."""
        if self._denominators is None:
            self._drop()  # gradients that other code left behind do not belong to this step
            self._denominators = denominators
        if self._denominators != denominators:
            raise ValueError(f"a part with {denominators} cannot be added to a step with {self._denominators}")
        try:
            rows = batch.select(np.flatnonzero(batch.host.loss_mask.any(axis=1)))  # others cost no forward pass
            budget = self._lanes.budget(rows.num_tokens, self._tokens_per_microbatch)
            parts = [part for _, part in self._scorer.trunk.split(rows, budget)]
            costs = [part.num_tokens for part in parts]
            reached = [parameter for optimizer in self._optimizers for parameter in optimizer.parameters]
            with self._passes(), self._lanes.adding(parts, costs, reached, self._values) as own_parts:
                for part in own_parts:
                    outputs, value = self._forward(part, objective, denominators)
                    loss = self._lanes.reaching(outputs, value.loss)
                    if loss.requires_grad:
                        loss.backward()
                    self._values.append(replace(value, loss=loss.detach()))
                # Where processes hold slices of the weights, all make equally many passes, or one would wait for ever.
                for part in self._lanes.fillers(parts, costs):
                    outputs, _ = self._forward(part, objective, denominators)
                    self._lanes.reaching(outputs, outputs[0].new_zeros(())).backward()
        except BaseException:
            self._drop()  # an incomplete gradient must not become a step
            raise

    def settle(self, planned_step: int | None = None) -> Update:
        """Check that losses and gradients are finite, then step with them; see `roles.Policy`."""
        if self._denominators is None:
            raise ValueError("settle() was called without a step begun by accumulate()")
        own, *others = self._optimizers
        num_tokens, values = self._denominators.num_tokens, self._values
        if num_tokens == 0:
            self._drop()
            return Update(dict(metric for optimizer in self._optimizers for metric in optimizer.skip().items()))
        if not values:  # trained tokens were counted, but none of their rows has a gradient
            own.weights.zero()
        # Everything is checked before anything moves: a diverged head must leave the policy untouched as well.
        try:
            norm = own.checked_norm([value.loss for value in values], num_tokens)
            norms = [norm, *(optimizer.checked_norm() for optimizer in others)]
        except DivergenceError:
            self._drop()
            raise
        metrics = MetricStore.of(value.metrics for value in values).merged()
        for optimizer, norm in zip(self._optimizers, norms, strict=True):
            metrics |= optimizer.step(norm, planned_step)
        self._drop()
        signals = functools.reduce(Signals.merge, (value.signals for value in values), Signals())
        entropies = [RowEntropies(*map(Tensor.cpu, value.entropies)) for value in values if value.entropies]
        return Update(metrics, signals, entropies)

    def take_gradient(self) -> tuple[Gradients, Mapping[str, Metric]]:
        """End a step begun by `accumulate` without making it: its gradient by parameter of the role, None where no part
        has reached it, and its metrics. Weights and optimizer stay as they are."""
        if self._denominators is None:
            raise ValueError("take_gradient() was called without a step begun by accumulate()")
        metrics = MetricStore.of(value.metrics for value in self._values).merged()
        gradients = take_gradients(self._optimizers[0].parameters)
        self._drop()
        return gradients, metrics

    def _drop(self) -> None:
        """Discard the parts of an unfinished step, and their gradients."""
        self._denominators, self._values = None, []
        for optimizer in self._optimizers:
            optimizer.weights.clear()

    def rest_optimizer(self, folder: Path) -> None:
        """See `RoleOptimizer.rest`."""
        self._optimizers[0].rest(folder)

    def training_state(self) -> TrainingState:
        """See `RoleOptimizer.state`."""
        return self._optimizers[0].state()

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""
        with self._awake():
            self._optimizers[0].load_state(state)
