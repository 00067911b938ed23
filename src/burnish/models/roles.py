"""What the loop asks of its models. A local object and a remote handle both satisfy these protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.forward.token_scores import TokenScores
from burnish.models.weights import Weights
from burnish.types import Metric


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the whole optimizer step, known before its first forward pass.

    num_tokens: trained tokens; num_sequences: sequences with at least one trained token.
    """

    num_tokens: int
    num_sequences: int


@dataclass(frozen=True, slots=True)
class Signals:
    """What the loop decides by, as opposed to what it only logs. None where nothing was measured.

    ratio_deviation: largest |ratio - 1| against the old log-probabilities. approx_kl: mean KL(old || current) over the
    trained tokens.
    """

    ratio_deviation: Metric | None = None
    approx_kl: Metric | None = None

    def merge(self, later: Signals) -> Signals:
        """The signals of two parts, or of two optimizer steps, together."""
        return Signals(_merged(self.ratio_deviation, later.ratio_deviation), _merged(self.approx_kl, later.approx_kl))


def _merged(first: Metric | None, later: Metric | None) -> Metric | None:
    return first if later is None else later if first is None else first.merge(later)


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """A micro-batch's share of the loss of the optimizer step (shares add up), with what to log and to decide by."""

    loss: Tensor
    metrics: Mapping[str, Metric]
    signals: Signals = Signals()


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer step reports: `metrics` are logged, `signals` are what the loop decides by."""

    metrics: Mapping[str, Metric]
    signals: Signals = Signals()


class Objective(Protocol):
    """Turns a micro-batch's fresh scores into its share of the loss. It can be pickled, because a policy may live in
    another process, or on several."""

    @property
    def needs_entropy(self) -> bool: ...

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue: ...


class Reference(Protocol):
    """A frozen model that only scores."""

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, no gradient."""
        ...


class Policy(Protocol):
    """The model that is trained. Batches come from and results go to the host's memory, wherever the model lives.

    An optimizer step is made of parts: `accumulate` each of them, then `settle`. `update` does both for one batch.
    """

    @property
    def version(self) -> int:
        """Optimizer steps begun so far: while it stays the same, no weight has moved."""
        ...

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        """Scores of the response tokens under the current weights, no gradient."""
        ...

    def accumulate(self, batch: Batch, objective: Objective, denominators: Denominators) -> None:
        """Forward and backward over a part of an optimizer step, in micro-batches by token budget.

        `denominators` are those of the whole step, the same in all of its parts. The weights stay as they are until
        `settle`. Whatever is raised on the way drops all parts of the step.
        """
        ...

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the optimizer step of all parts since the last one: check losses and gradients, clip, step, clear.

        Raises DivergenceError, with the weights untouched and the gradients cleared, when a loss or the gradient is not
        finite. `planned_step` is this step's place (from 0) among those that the run would make if it skipped none:
        its learning rate follows that, or `version` where none is given.
        """
        ...

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        """One optimizer step on the batch: `accumulate` and `settle`. Parts that were accumulated before are dropped.

        `denominators` are given when rows without a gradient have been left out of the batch, and count them as well.
        """
        ...

    def publish(self) -> Weights:
        """The weights of this version, for engines to sync with before the next update."""
        ...

    def save_weights(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads (safetensors, config, tokenizer)."""
        ...

    def load_weights(self, folder: Path) -> None:
        """Take over what `save_weights` wrote, bit for bit. Raises CheckpointError if it does not fit."""
        ...

    def training_state(self) -> dict[str, Any]:
        """Optimizer, scheduler and version: tensors and plain values."""
        ...

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """The opposite of `training_state`; load the weights first."""
        ...


class ValueObjective(Protocol):
    """Turns a micro-batch's fresh values into its share of the value loss."""

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue: ...


class Critic(Protocol):
    """Predicts the return from the state before each response token."""

    @property
    def version(self) -> int:
        """Optimizer steps begun so far."""
        ...

    @property
    def shares_trunk(self) -> bool:
        """True when the policy's own update trains the critic with it (one backward pass for both)."""
        ...

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, no gradient; 0 past a response's end."""
        ...

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """Forward and backward over a part of an optimizer step of the critic alone, as in `Policy.accumulate`."""
        ...

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the optimizer step of all parts, as in `Policy.settle`. It never moves the policy."""
        ...

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """One optimizer step of the critic alone: `accumulate` and `settle`."""
        ...

    def save_weights(self, folder: Path) -> None: ...

    def load_weights(self, folder: Path) -> None: ...

    def training_state(self) -> dict[str, Any]: ...

    def load_training_state(self, state: Mapping[str, Any]) -> None: ...
