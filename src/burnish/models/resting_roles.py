"""The roles whose weights rest while nobody asks them (`cluster.offload`); see `burnish.models.resting`."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.models.critic import SeparateCritic
from burnish.models.reference import FrozenReference
from burnish.models.resting import Resting, own_memory, resting_place
from burnish.models.roles import Denominators, TrainingState, Update, ValueObjective


class RestingReference:
    """`roles.Reference` whose weights rest while nobody asks it."""

    def __init__(self, reference: FrozenReference, folder: Path) -> None:
        self._reference = reference
        own_memory(reference.model)
        place = resting_place(reference.model.device, folder)
        self.resting = Resting("reference", place, reference.model.parameters, changes=False)

    def logprobs(self, batch: Batch) -> Tensor:
        """See `roles.Reference`."""
        with self.resting.awake():
            return self._reference.logprobs(batch)


class RestingCritic:
    """`roles.Critic` with a backbone of its own that rests while nobody asks for values or updates. Its gradients do
    not rest: they are there from the first part of an update to its step only."""

    shares_trunk = False

    def __init__(self, critic: SeparateCritic, folder: Path) -> None:
        self._critic = critic
        self.resting = Resting("critic", resting_place(critic.trunk.device, folder), critic.trunk.parameters)

    @property
    def version(self) -> int:
        """See `roles.Critic`."""
        return self._critic.version

    def values(self, batch: Batch) -> Tensor:
        """See `roles.Critic`."""
        with self.resting.awake():
            return self._critic.values(batch)

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """See `roles.Critic`."""
        with self.resting.awake():
            self._critic.accumulate(batch, objective, denominators)

    def settle(self, planned_step: int | None = None) -> Update:
        """See `roles.Critic`."""
        with self.resting.awake():
            return self._critic.settle(planned_step)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """See `roles.Critic`."""
        with self.resting.awake():
            return self._critic.update(batch, objective, planned_step=planned_step)

    def save_weights(self, folder: Path) -> None:
        """See `roles.Critic`."""
        with self.resting.awake():
            self._critic.save_weights(folder)

    def load_weights(self, folder: Path) -> None:
        """See `roles.Critic`."""
        with self.resting.awake():
            self._critic.load_weights(folder)

    def training_state(self) -> TrainingState:
        """See `roles.Critic`."""
        with self.resting.awake():
            return self._critic.training_state()

    def load_training_state(self, state: TrainingState) -> None:
        """See `roles.Critic`."""
        with self.resting.awake():
            self._critic.load_training_state(state)
