"""What the loop asks of its models. A local object and a remote handle both satisfy these protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.forward.token_scores import TokenScores
from burnish.types import Metric


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts over the whole optimizer step, known before its first forward pass.

    num_tokens: trained tokens; num_sequences: sequences with at least one trained token.
    """

    num_tokens: int
    num_sequences: int


@dataclass(frozen=True, slots=True)
class ObjectiveValue:
    """A micro-batch's share of the loss of the optimizer step (shares add up), with what to log."""

    loss: Tensor
    metrics: Mapping[str, Metric]


class Objective(Protocol):
    """Turns a micro-batch's fresh scores into its share of the loss."""

    @property
    def needs_entropy(self) -> bool: ...

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue: ...


class Reference(Protocol):
    """A frozen model that only scores."""

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, no gradient."""
        ...


class Policy(Protocol):
    """The model that is trained."""

    @property
    def version(self) -> int:
        """Optimizer steps begun so far: as long as it stands, no weight has moved."""
        ...

    def logprobs(self, batch: Batch, *, entropy: bool = False, correct: bool = False) -> TokenScores:
        """Scores of the response tokens under the current weights, no gradient."""
        ...

    def update(
        self,
        batch: Batch,
        objective: Objective,
        *,
        denominators: Denominators | None = None,
        planned_step: int | None = None,
    ) -> dict[str, Metric]:
        """One optimizer step on the batch, cut into micro-batches by token budget; raises DivergenceError before the
        step when loss or gradient is not finite. `denominators` are given when rows without a gradient have been left
        out of the batch, and count them as well. `planned_step` is this step's place (from 0) among those that the
        run would make if it skipped none: its learning rate follows that, or `version` where none is given."""
        ...

    def save_weights(self, folder: Path) -> None:
        """Write a folder that `from_pretrained` loads (safetensors, config, tokenizer)."""
        ...

    def training_state(self) -> dict[str, Any]:
        """Optimizer, scheduler and version: tensors and plain values."""
        ...

    def load_training_state(self, state: Mapping[str, Any]) -> None: ...


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

    def update(self, batch: Batch, objective: ValueObjective, *, planned_step: int | None = None) -> dict[str, Metric]:
        """One optimizer step of the critic alone, which never moves the policy; raises DivergenceError before the step
        when loss or gradient is not finite. `planned_step` as in `Policy.update`."""
        ...

    def save_weights(self, folder: Path) -> None: ...

    def load_weights(self, folder: Path) -> None: ...

    def training_state(self) -> dict[str, Any]: ...

    def load_training_state(self, state: Mapping[str, Any]) -> None: ...
