"""The roles of `burnish.models.roles` and the engine protocol, as handles to objects in other processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from burnish.distributed.handover import SharedWeights
from burnish.distributed.processes import ProcessRole
from burnish.distributed.server import Named, buckets
from burnish.forward.batch import Batch
from burnish.forward.token_scores import TokenScores
from burnish.models.roles import Denominators, Objective, TrainingState, Update, ValueObjective
from burnish.models.weights import Weights
from burnish.rollouts.engine import OnFinished, Sampling
from burnish.types import Metric, Rollout, RolloutRequest


class RoleHandle(Protocol):
    """A role elsewhere: `ProcessRole` in one process, `burnish.distributed.trainers.TeamRole` in several at once."""

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method, or read the property, of the role, of every one of them where there are several."""
        ...

    def ask_one(self, method: str, *arguments: object, **named: object) -> Any:
        """The same, of one of them only: for what must happen once, such as writing a file."""
        ...

    def read(self, version: int) -> Iterator[Named]:
        """The weights that the role, a policy, has published."""
        ...

    def share(self, version: int) -> SharedWeights:
        """The same, in memory that other processes of this machine can read."""
        ...


class _RemoteLearner:
    """What a policy and a critic have in common. Folders must be on a disk that both processes see."""

    def __init__(self, role: RoleHandle) -> None:
        self._role = role

    @property
    def version(self) -> int:
        version: int = self._role.ask_one("version")
        return version

    def settle(self, planned_step: int | None = None) -> Update:
        update: Update = self._role.ask("settle", planned_step)
        return update

    def save_weights(self, folder: Path) -> None:
        self._role.ask_one("save_weights", folder.absolute())

    def load_weights(self, folder: Path) -> None:
        self._role.ask("load_weights", folder.absolute())

    def training_state(self) -> TrainingState:
        state: TrainingState = self._role.ask_one("training_state")
        return state

    def load_training_state(self, state: TrainingState) -> None:
        self._role.ask("load_training_state", state)


class RemotePolicy(_RemoteLearner):
    """`roles.Policy` in another process. Objectives are sent there pickled."""

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        scores: TokenScores = self._role.ask("logprobs", batch, entropy=entropy, correct=correct)
        return scores

    def accumulate(self, batch: Batch, objective: Objective, denominators: Denominators) -> None:
        self._role.ask("accumulate", batch, objective, denominators)

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        update: Update = self._role.ask(
            "update", batch, objective, denominators=denominators, planned_step=planned_step
        )
        return update

    def publish(self) -> Weights:
        """The weights of this version. Whoever reads them fetches a few tensors at a time."""
        version = self.version
        return Weights(version, PublishedElsewhere(self._role, version))


@dataclass(frozen=True, slots=True)
class PublishedElsewhere:
    """`Weights.tensors` of a policy in another process."""

    role: RoleHandle
    version: int

    def __call__(self) -> Iterator[Named]:
        return self.role.read(self.version)

    def share(self) -> SharedWeights:
        """The same in shared memory, written over there."""
        return self.role.share(self.version)


class RemoteCritic(_RemoteLearner):
    """`roles.Critic` in another process, which is the policy's if they share a backbone."""

    @property
    def shares_trunk(self) -> bool:
        shares: bool = self._role.ask_one("shares_trunk")
        return shares

    def values(self, batch: Batch) -> Tensor:
        values_BT: Tensor = self._role.ask("values", batch)
        return values_BT

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        self._role.ask("accumulate", batch, objective, denominators)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        update: Update = self._role.ask("update", batch, objective, planned_step=planned_step)
        return update


class RemoteReference:
    """`roles.Reference` in another process."""

    def __init__(self, role: RoleHandle) -> None:
        self._role = role

    def logprobs(self, batch: Batch) -> Tensor:
        logprobs_BT: Tensor = self._role.ask("logprobs", batch)
        return logprobs_BT


class RemoteEngine:
    """A `RolloutEngine` in another process, with a copy of the weights. All responses arrive at once, at the end, so
    `on_finished` is never called."""

    def __init__(self, role: ProcessRole) -> None:
        self._role = role

    def generate(
        self,
        requests: Sequence[RolloutRequest],
        sampling: Sampling,
        *,
        seed: int,
        step: int,
        on_finished: OnFinished | None = None,
    ) -> list[Rollout]:
        return self._role.generate(list(requests), sampling, seed=seed, step=step)

    def sync(self, weights: Weights) -> None:
        self._role.sync(weights.version, buckets(weights.tensors()))

    def take_metrics(self) -> Mapping[str, Metric]:
        metrics: Mapping[str, Metric] = self._role.ask("take_metrics")
        return metrics
