"""A critic that is a value head on the policy's trunk. `LocalPolicy.add_value_head` makes it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.models.roles import Denominators, TrainingState, Update, ValueObjective
from burnish.models.value_head import CriticOptimizer, ValueHead, ValueScorer
from burnish.models.value_steps import ValueSteps


class SharedCritic:
    """`roles.Critic` as a value head on the policy's trunk.

    The policy's own updates train head and trunk in one backward pass (the objective adds the value loss). The head has
    its own optimizer, learning rate and gradient clipping: it starts at 0 and needs larger steps than the trunk bears.
    `update` trains the head alone.
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
        self._steps = ValueSteps(
            scorer, optimizer, tokens_per_microbatch=tokens_per_microbatch, train_trunk=False, lanes=lanes
        )

    @property
    def head(self) -> ValueHead:
        """The read-out, which policy and critic share."""
        return self._scorer.head

    @property
    def version(self) -> int:
        """Optimizer steps of the head so far, those within the policy's updates among them."""
        return self._optimizer.version

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, no gradient; 0 past a response's end."""
        return self._scorer.score_in_microbatches(batch, self._tokens_per_microbatch, lanes=self._lanes)

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """Add the gradient of a part of a step of the head alone; see `roles.Critic`."""
        self._steps.accumulate(batch, objective, denominators)

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the step of all parts; see `roles.Critic`."""
        return self._steps.settle(planned_step)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """One optimizer step of the head alone; the trunk, and with it the policy, stays as it is."""
        return self._steps.update(batch, objective, planned_step)

    def save_weights(self, folder: Path) -> None:
        """Write the head; the trunk is the policy's."""
        self.head.save(folder)

    def load_weights(self, folder: Path) -> None:
        """Take over what `save_weights` wrote."""
        self.head.load(folder)
        self._optimizer.refresh()

    def training_state(self) -> TrainingState:
        """Optimizer of the head and version, as plain values and tensors."""
        return self._optimizer.state()

    def load_training_state(self, state: TrainingState) -> None:
        """The opposite of `training_state`; load the weights first."""
        self._optimizer.load_state(state)
