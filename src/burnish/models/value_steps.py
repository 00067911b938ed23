"""Optimizer steps of a critic alone: the counterpart of what `LocalPolicy` does for a policy."""

from __future__ import annotations

from dataclasses import replace

from burnish.errors import DivergenceError
from burnish.forward.batch import Batch
from burnish.forward.lanes import Lanes
from burnish.models.accumulation import Accumulation, count_denominators, trained_rows
from burnish.models.cut import CutModel, go_back
from burnish.models.roles import Denominators, Update, ValueObjective
from burnish.models.value_head import CriticOptimizer, ValueScorer


class ValueSteps:
    """Accumulates gradients of a value loss and steps with them. Without `train_trunk`, only the head's."""

    def __init__(
        self,
        scorer: ValueScorer,
        optimizer: CriticOptimizer,
        *,
        tokens_per_microbatch: int,
        train_trunk: bool,
        lanes: Lanes,
    ) -> None:
        self._scorer = scorer
        self._optimizer = optimizer
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._train_trunk = train_trunk
        self._accumulation: Accumulation | None = None

    def share(self, shared: CutModel) -> None:
        """From now on every process of a team has slices of the weights. Their optimizer is the caller's."""
        self._scorer.root = shared.root
        self._lanes = shared.lanes

    def update(self, batch: Batch, objective: ValueObjective, planned_step: int | None) -> Update:
        """`accumulate` and `settle`, with the denominators of the batch."""
        self._accumulation = None
        self.accumulate(batch, objective, count_denominators(batch))
        return self.settle(planned_step)

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """See `roles.Critic`."""
        if self._accumulation is None:
            self._optimizer.clear()
            self._accumulation = Accumulation(denominators)
        accumulation = self._accumulation
        if accumulation.denominators != denominators:
            raise ValueError(f"a part with {denominators} cannot be added to a step with {accumulation.denominators}")
        try:
            rows = trained_rows(batch)
            budget = self._lanes.budget(rows.num_tokens, self._tokens_per_microbatch)
            parts = [part for _, part in self._scorer.split(rows, budget)]
            costs = [part.num_tokens for part in parts]
            with self._lanes.adding(parts, costs, self._optimizer.parameters, accumulation.values) as own_parts:
                for part in own_parts:
                    part = part.to(self._scorer.device)
                    values_BT = self._scorer.score(part, only_trained=True, train_trunk=self._train_trunk)
                    value = objective(values_BT, part, denominators)
                    value.loss.backward()
                    accumulation.values.append(replace(value, loss=value.loss.detach()))
                for part in self._lanes.fillers(parts, costs):
                    go_back([self._scorer.score(part, only_trained=True, train_trunk=self._train_trunk)])
        except BaseException:
            self._drop()  # an incomplete gradient must not become a step
            raise

    def settle(self, planned_step: int | None) -> Update:
        """See `roles.Critic`."""
        accumulation = self._accumulation
        if accumulation is None:
            raise ValueError("settle() was called without a step begun by accumulate()")
        if accumulation.denominators.num_tokens == 0:
            self._drop()
            return Update(self._optimizer.skip())
        try:
            self._optimizer.check_finite(
                f"loss over {accumulation.denominators.num_tokens} tokens", accumulation.odd_loss()
            )
            norm = self._optimizer.checked_norm()
        except DivergenceError:
            self._drop()
            raise
        self._accumulation = None
        return Update(accumulation.metrics | self._optimizer.step(norm, planned_step))

    def _drop(self) -> None:
        self._accumulation = None
        self._optimizer.clear()
