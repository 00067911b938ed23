"""Protocols of the models in the training loop. Local objects and remote handles both satisfy them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from burnish.forward.batch import Batch, TokenScores
from burnish.models.weights import Weights
from burnish.types import Metric

TrainingState = dict[str, Any]
"""State of a learner besides its weights, by name: tensors, plain values, and dictionaries of them."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the whole optimizer step, known before its first forward pass.

    num_tokens: trained tokens; num_sequences: sequences with at least one trained token; num_turns: turns of the policy
    with at least one (a sequence without turns is one).
    """

    num_tokens: int
    num_sequences: int
    num_turns: int


def count_denominators(batch: Batch) -> Denominators:
    """Count trained tokens, and sequences and turns with at least one of them, over the whole batch."""
    loss_mask, turns = batch.host.loss_mask, batch.host.trained_turns
    return Denominators(int(loss_mask.sum()), int(loss_mask.any(axis=1).sum()), int(turns.sum()))


@dataclass(frozen=True, slots=True)
class Signals:
    """Measurements that the loop bases decisions on, as opposed to metrics that it only logs. None if not measured.

    ratio_deviation: largest |ratio - 1| against the old log-probabilities. approx_kl: mean KL(old || current) over the
    trained tokens.
    """

    ratio_deviation: Metric | None = None
    approx_kl: Metric | None = None

    def merge(self, later: Signals) -> Signals:
        """Combine the signals of two parts, or of two optimizer steps."""
        return Signals(_merged(self.ratio_deviation, later.ratio_deviation), _merged(self.approx_kl, later.approx_kl))


def _merged(first: Metric | None, later: Metric | None) -> Metric | None:
    return first if later is None else later if first is None else first.merge(later)


class RowEntropies(NamedTuple):
    """Entropy of the policy at each trained token of some rows, 0 elsewhere. row_numbers_B: of `Batch`."""

    row_numbers_B: Tensor
    entropy_BT: Tensor


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """A micro-batch's share of the optimizer step's loss (the shares add up), with metrics and signals.

    entropies: of its rows, if they are numbered and the objective computes entropy anyway.
    """

    loss: Tensor
    metrics: Mapping[str, Metric]
    signals: Signals = Signals()
    entropies: RowEntropies | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Report of an optimizer step: `metrics` are logged, the loop bases its decisions on `signals`, and `entropies` of
    the micro-batches are recorded."""

    metrics: Mapping[str, Metric]
    signals: Signals = Signals()
    entropies: Sequence[RowEntropies] = ()


class Objective(Protocol):
    """Turns a micro-batch's new scores into its share of the loss. It can be pickled, because a policy may live in
    one or several other processes."""

    @property
    def needs_entropy(self) -> bool: ...

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue: ...


class Reference(Protocol):
    """A frozen model that only scores."""

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, without gradient."""


class Learner(Protocol):
    """A model that is trained, as a checkpoint sees it."""

    @property
    def version(self) -> int:
        """Optimizer steps begun so far. As long as it stays the same, no weight has changed."""

    def save_weights(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads (safetensors, config, tokenizer)."""

    def load_weights(self, folder: Path) -> None:
        """Load what `save_weights` wrote, bit for bit. Raises CheckpointError if it does not fit."""

    def training_state(self) -> TrainingState:
        """Optimizer state and version: tensors and plain values. The next update may change the tensors."""

    def load_training_state(self, state: TrainingState) -> None:
        """The inverse of `training_state`. Load the weights first."""


class Policy(Learner, Protocol):
    """The model being trained. Batches and results are in the host's memory, wherever the model is.

    An optimizer step is made of parts: `accumulate` each of them, then `settle`. `update` does both for one batch.
    """

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        """Score the response tokens under the current weights, without gradient."""

    def accumulate(self, batch: Batch, objective: Objective, denominators: Denominators) -> None:
        """Forward and backward over a part of an optimizer step, in micro-batches by token budget.

        `denominators` count over the whole step and are the same in all of its parts. The weights do not change until
        `settle`. Any exception discards all parts of the step.
        """

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the optimizer step from all parts since the last one: check losses and gradients, clip, step, clear.

        Raises DivergenceError if a loss or the gradient is not finite, with the weights untouched and the gradients
        cleared. `planned_step` is this step's index (from 0) among the steps that the run would make if it skipped
        none. It determines the learning rate; without it, `version` does.
        """

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> Update:
        """One optimizer step on the batch: `accumulate` and `settle`. Discards parts that were accumulated before.

        Pass `denominators` if rows without a gradient have been left out of the batch; they count those rows too.
        """

    def publish(self) -> Weights:
        """The weights of this version, for engines to sync with before the next update."""


class DistilledPolicy(Policy, Protocol):
    """A policy that learns from a teacher."""

    def compare(self, batch: Batch) -> TokenScores:
        """Score the response tokens without gradient, and compare with the teacher at each of them."""


class ValueObjective(Protocol):
    """Turns a micro-batch's new values into its share of the value loss."""

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue: ...


class Critic(Learner, Protocol):
    """Predicts the return from the state before each response token."""

    @property
    def shares_trunk(self) -> bool:
        """True if the policy's own update also trains the critic (one backward pass for both)."""

    def values(self, batch: Batch) -> Tensor:
        """(B, T) values of the states before the response tokens, without gradient. 0 past the end of a response."""

    def accumulate(self, batch: Batch, objective: ValueObjective, denominators: Denominators) -> None:
        """Forward and backward over a part of an optimizer step of the critic alone, as in `Policy.accumulate`."""

    def settle(self, planned_step: int | None = None) -> Update:
        """Make the optimizer step from all parts, as in `Policy.settle`. Never changes the policy."""

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> Update:
        """One optimizer step of the critic alone: `accumulate` and `settle`."""
