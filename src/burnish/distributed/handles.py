"""The roles of `burnish.models.roles`, as handles to objects in other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.distributed.peers import GRACE_SECONDS, Peer, ProcessRole, RoleLostError, ask_all
from burnish.distributed.server import Named
from burnish.distributed.weight_transfer import SealedWeights
from burnish.forward.batch import Batch, TokenScores
from burnish.models.reward_learner import Comparison, PreferenceObjective
from burnish.models.reward_model import PromptResponse
from burnish.models.roles import Denominators, Objective, TrainingState, Update, ValueObjective
from burnish.models.weights import Weights
from burnish.types import Metric


@dataclass(frozen=True, slots=True)
class TeamRole(ProcessRole):
    """A handle to one role that `process` and the `others` of its team have: the same models in each, which share the
    micro-batches of a step and step alike. The first process answers for all where nothing else is said.

    cuts_weights: each process has a slice of every weight only, so all take part in reading them.
    """

    others: tuple[Peer, ...] = ()
    cuts_weights: bool = False

    def ask(self, method: str, *arguments: object, **named: object) -> Any:
        """Call the method of the role in all processes side by side; the result of the first one. Raises as
        `peers.ask_all` does."""
        message: tuple[object, ...] = ("call", self.name, method, arguments, named)
        team, what = (self.process, *self.others), f"{self.name}.{method}"
        return ask_all(team, message, what=what, seconds=self.seconds, alone_stuck=self.cuts_weights)[0]

    def share(self, version: int) -> SealedWeights:
        """See `ProcessRole`. Where each process has slices, all of them take part."""
        if not self.cuts_weights or not self.others:
            return ProcessRole.share(self, version)
        message: tuple[object, ...] = ("call", self.name, "give_weights", (version,), dict[str, object]())
        with ThreadPoolExecutor(1) as giving:
            given = giving.submit(ask_all, self.others, message, what=f"weights of {self.name}", seconds=self.seconds)
            given.add_done_callback(self._end_first_after)
            try:
                shared = ProcessRole.share(self, version)
            except Exception:  # raised again; mostly because another one is lost, which is then what there is to say
                wait([given], timeout=GRACE_SECONDS)
                for process in self.others:
                    process.kill()
                lost = given.exception()
                if isinstance(lost, RoleLostError):
                    raise lost from None
                raise
            given.result()
        return shared

    def _end_first_after(self, given: Future[list[Any]]) -> None:
        """The first process would wait for the slices of processes that have failed."""
        if given.exception() is not None:
            self.process.kill()


class _RemoteLearner:
    """Base of the handles of trained models. Folders must be on a disk that both processes see."""

    def __init__(self, role: ProcessRole) -> None:
        self._role = role

    @property
    def version(self) -> int:
        return self._role.ask_one("version")

    def save_weights(self, folder: Path) -> None:
        self._role.ask("save_weights", folder.absolute())  # the first process writes; others may have slices for it

    def load_weights(self, folder: Path) -> None:
        self._role.ask("load_weights", folder.absolute())

    def training_state(self) -> TrainingState:
        return self._role.ask("training_state")  # the first one puts it together from all

    def load_training_state(self, state: TrainingState) -> None:
        self._role.ask("load_training_state", state)


class _RemoteAccumulator(_RemoteLearner):
    """A learner whose optimizer step is made of parts. Objectives are sent there pickled."""

    def accumulate(self, batch: Batch, objective: Objective | ValueObjective, denominators: Denominators) -> None:
        self._role.ask("accumulate", batch, objective, denominators)

    def settle(self, planned_step: int | None = None) -> Update:
        return self._role.ask("settle", planned_step)


class RemotePolicy(_RemoteAccumulator):
    """`roles.Policy` in another process."""

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        return self._role.ask("logprobs", batch, entropy=entropy, correct=correct)

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        return self._role.ask("update", batch, objective, denominators=denominators, planned_step=planned_step)

    def publish(self) -> Weights:
        """The weights of this version. Whoever reads them fetches a few tensors at a time."""
        version = self.version
        return Weights(version, PublishedElsewhere(self._role, version))


class RemoteStudent(RemotePolicy):
    """`roles.DistilledPolicy` in another process, together with its teacher."""

    def compare(self, batch: Batch) -> TokenScores:
        return self._role.ask("compare", batch)


@dataclass(frozen=True, slots=True)
class PublishedElsewhere:
    """`Weights.tensors` of a policy in another process."""

    role: ProcessRole
    version: int

    def __call__(self) -> Iterator[Named]:
        return self.role.read(self.version)

    def share(self) -> SealedWeights:
        """The same, written once over there for all who want them."""
        return self.role.share(self.version)


class RemoteCritic(_RemoteAccumulator):
    """`roles.Critic` in another process, which is the policy's if they share a backbone."""

    @property
    def shares_trunk(self) -> bool:
        return self._role.ask_one("shares_trunk")

    def values(self, batch: Batch) -> Tensor:
        return self._role.ask("values", batch)

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        return self._role.ask("update", batch, objective, planned_step=planned_step)


class RemoteRewardLearner(_RemoteLearner):
    """`PreferenceLearner` in another process. Objectives are sent there pickled."""

    def update(self, comparisons: Sequence[Comparison], objective: PreferenceObjective) -> dict[str, Metric]:
        return self._role.ask("update", comparisons, objective)

    def compare(self, comparisons: Sequence[Comparison]) -> list[list[float]]:
        return self._role.ask("compare", comparisons)

    def score(self, pairs: Sequence[PromptResponse]) -> list[float]:
        return self._role.ask("score", pairs)

    def normalise(self, measured: Sequence[float], *, scale: bool, measured_on: str) -> None:
        self._role.ask("normalise", measured, scale=scale, measured_on=measured_on)


class RemoteReference:
    """`roles.Reference` in another process."""

    def __init__(self, role: ProcessRole) -> None:
        self._role = role

    def logprobs(self, batch: Batch) -> Tensor:
        return self._role.ask("logprobs", batch)
