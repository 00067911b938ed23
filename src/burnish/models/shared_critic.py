"""A critic that is a value head on the policy's backbone. `LocalPolicy.add_value_head` makes it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.models.cut import CutModel
from burnish.models.roles import Denominators, TrainingState, Update, ValueObjective
from burnish.models.value_head import CriticOptimizer, ValueHead, ValueScorer
from burnish.models.value_steps import ValueSteps


class SharedCritic:
    """`roles.Critic` as a value head on the policy's backbone.

    The policy's own updates train head and backbone in one backward pass (the objective adds the value loss). The head
    has its own optimizer, learning rate and gradient clipping, because it starts at 0 and needs larger steps than the
    backbone tolerates. `update` trains only the head.
    """

    shares_trunk = True

    def __init__(
        self,
        scorer: ValueScorer,
        optimizer: CriticOptimizer,
        *,
        tokens_per_microbatch: int,
        lanes: Lanes = ONE_LANE,
    ) -> None:
        self._tokens_per_microbatch = tokens_per_microbatch
        self._lanes = lanes
        self._scorer = scorer
        self._optimizer = optimizer
        self._shared: CutModel | None = None
        self._steps = ValueSteps(
            scorer, optimizer, tokens_per_microbatch=tokens_per_microbatch, train_trunk=False, lanes=lanes
        )

    def share(self, shared: CutModel) -> None:
        """From now on every process of a team has slices of backbone and head, which the policy has cut together."""
        self._shared = shared
        self._lanes = shared.lanes
        self._optimizer.share(shared, list(self.head.named_parameters()))
        self._steps.share(shared)

    @property
    def head(self) -> ValueHead:
        """The value head, shared by policy and critic."""
        return self._scorer.head

    @property
    def version(self) -> int:
        """Optimizer steps of the head so far, including those made in the policy's updates."""
        return self._optimizer.version

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, without gradient. 0 past the end of a response."""
        return self._scorer.score_in_microbatches(batch, self._tokens_per_microbatch, lanes=self._lanes)

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """Add the gradient of one part of a step of the head only; see `roles.Critic`."""
        self._steps.accumulate(batch, objective, denominators)

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the step from all parts; see `roles.Critic`."""
        return self._steps.settle(planned_step)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """One optimizer step of the head only. The backbone, and so the policy, does not change."""
        return self._steps.update(batch, objective, planned_step)

    def save_weights(self, folder: Path) -> None:
        """Write the head, in the first process of a team. The policy writes the backbone."""
        shared = self._shared
        state = None if shared is None else shared.collected(shared.whole_ones(self.head))
        if self._lanes.keeps_state:
            self.head.save(folder, state)

    def load_weights(self, folder: Path) -> None:
        """Load what `save_weights` wrote."""
        self.head.load(folder, Tensor.copy_ if self._shared is None else self._shared.copy)
        self._optimizer.refresh()

    def training_state(self) -> TrainingState:
        """The head's optimizer state and version, as plain values and tensors."""
        return self._optimizer.state()

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""
        self._optimizer.load_state(state)
