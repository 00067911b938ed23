"""The roles of `burnish.models.roles`, as handles to objects in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from burnish.distributed.peers import GRACE_SECONDS, Peer, ProcessRole, RoleLostError, ask_all
from burnish.distributed.server import Named
from burnish.distributed.weight_transfer import SealedWeights
from burnish.models.reward_learner import PreferenceLearner
from burnish.models.roles import Critic, DistilledPolicy, Learner, Policy, Reference
from burnish.models.weights import Weights

Given = ParamSpec("Given")
Result = TypeVar("Result")


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


def _asking(method: Callable[Concatenate[Any, Given], Result]) -> Callable[Concatenate[Any, Given], Result]:
    """A method of a handle: the same one, asked of its role."""

    @wraps(method)
    def ask(handle: _Handle, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
        return handle.role.ask(method.__name__, *arguments, **named)

    return ask


class _Handle:
    """Base of the handles. Whatever their methods are given is sent there pickled, objectives as well."""

    def __init__(self, role: ProcessRole) -> None:
        self.role = role


class _RemoteLearner(_Handle):
    """Base of the handles of trained models. Folders must be on a disk that both processes see."""

    @property
    def version(self) -> int:
        return self.role.ask_one("version")

    def save_weights(self, folder: Path) -> None:
        self.role.ask("save_weights", folder.absolute())  # the first process writes; others may have slices for it

    def load_weights(self, folder: Path) -> None:
        self.role.ask("load_weights", folder.absolute())

    training_state = _asking(Learner.training_state)  # the first one puts it together from all
    load_training_state = _asking(Learner.load_training_state)


class RemotePolicy(_RemoteLearner):
    """`roles.Policy` in another process."""

    logprobs = _asking(Policy.logprobs)
    accumulate = _asking(Policy.accumulate)
    settle = _asking(Policy.settle)
    update = _asking(Policy.update)

    def publish(self) -> Weights:
        """The weights of this version. Whoever reads them fetches a few tensors at a time."""
        version = self.version
        return Weights(version, PublishedElsewhere(self.role, version))


class RemoteStudent(RemotePolicy):
    """`roles.DistilledPolicy` in another process, together with its teacher."""

    compare = _asking(DistilledPolicy.compare)


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


class RemoteCritic(_RemoteLearner):
    """`roles.Critic` in another process, which is the policy's if they share a backbone."""

    @property
    def shares_trunk(self) -> bool:
        return self.role.ask_one("shares_trunk")

    values = _asking(Critic.values)
    accumulate = _asking(Critic.accumulate)
    settle = _asking(Critic.settle)
    update = _asking(Critic.update)


class RemoteRewardLearner(_RemoteLearner):
    """`PreferenceLearner` in another process."""

    update = _asking(PreferenceLearner.update)
    compare = _asking(PreferenceLearner.compare)
    score = _asking(PreferenceLearner.score)
    normalise = _asking(PreferenceLearner.normalise)


class RemoteReference(_Handle):
    """`roles.Reference` in another process."""

    logprobs = _asking(Reference.logprobs)
