"""A policy that learns from a frozen teacher, which reads each micro-batch too, and the teachers of a run of `rl`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from burnish.forward.batch import Batch, TokenScores, present
from burnish.forward.divergences import Compared, Divergence, HeadInput, comparison
from burnish.forward.scoring import Compare, ResponsePositions, ResponseScorer
from burnish.models.cut import Cut
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.models.resting import rest_frozen
from burnish.models.roles import Reference
from burnish.models.tokenizers import require_same_tokens
from burnish.types import Tokenizer


class Tutor(Protocol):
    """Anything that a student is compared with: a `Teacher`, or what has been kept of one."""

    awake: Callable[[], AbstractContextManager[None]]

    def compare(
        self, batch: Batch, positions: ResponsePositions, student: HeadInput, targets_N: Tensor
    ) -> Compared: ...


class Teacher:
    """A frozen model whose token distributions a student learns, by some divergence."""

    def __init__(self, loaded: LoadedModel, divergence: Divergence) -> None:
        loaded.model.requires_grad_(False)
        self.loaded = loaded
        self.awake: Callable[[], AbstractContextManager[None]] = nullcontext
        """Brings the weights back where they rest between passes."""
        self._compared = comparison(divergence, plain=loaded.plain)
        self._scorer = ResponseScorer(loaded.model, plain=loaded.plain, vocabulary=loaded.vocabulary)

    def rest(self, folder: Path) -> None:
        """Offload the weights from now on, except while `awake` (`burnish.models.resting`)."""
        self.awake = rest_frozen("teacher", self.loaded.model, folder).awake

    def compare(self, batch: Batch, positions: ResponsePositions, student: HeadInput, targets_N: Tensor) -> Compared:
        """Read the batch and compare the student with what comes out (`burnish.forward.scoring.Compare`)."""
        return self._compared(student, self._scorer.below_head(batch, positions), targets_N)


def check_same_tokens(theirs: Tokenizer, ours: Tokenizer, path: str, field: str = "teacher.path") -> None:
    """Raise ModelError unless each token id means the same to teacher and student: they are compared id by id."""
    remedy = "use a teacher with the student's tokenizer, or train on texts that it has written (burnish sft)"
    require_same_tokens(field, path, theirs, ours, remedy=remedy, no_more=True)


class Student(LocalPolicy):
    """A policy whose scores of trained tokens have the divergence from a teacher with them."""

    def __init__(self, loaded: LoadedModel, settings: OptimizerSettings, *, teacher: Tutor, **settled: Any) -> None:
        """settled: further arguments of `LocalPolicy`."""
        super().__init__(loaded, settings, **settled)
        self._teacher = teacher
        self.compare_with(teacher.compare)

    def compare(self, batch: Batch) -> TokenScores:
        """Score the response tokens without gradient, and compare with the teacher at each of them."""
        with self._teacher.awake():
            return self._scorer.score_in_microbatches(
                batch, self._tokens_per_microbatch, correct=True, compare=self._teacher.compare, lanes=self._lanes
            )

    @contextmanager
    def _passes(self) -> Iterator[None]:
        with self._teacher.awake(), super()._passes():
            yield


class Teachers:
    """`roles.Reference` of one or several models. Of several, the batch says which one each row has
    (`Batch.teacher`)."""

    def __init__(self, models: Sequence[Reference]) -> None:
        self._models = models

    def logprobs(self, batch: Batch) -> Tensor:
        """(B, T) log-probabilities of the response tokens, without gradient. 0 past the end of a response."""
        if len(self._models) == 1:
            return self._models[0].logprobs(batch)
        found_BT = torch.zeros(batch.response_tokens.shape)
        for number, model in enumerate(self._models):
            rows = (present(batch.teacher, "teacher") == number).nonzero()[:, 0]
            if len(rows):
                part_BT = model.logprobs(batch.select(rows))
                found_BT[rows, : part_BT.shape[1]] = part_BT
        return found_BT

    def comparison(self, divergence: Divergence) -> Compare:
        """The divergence of a student from the only teacher, which must not share weights with the policy."""
        (model,) = self._models
        assert isinstance(model, FrozenReference), "other teachers are refused when the run file is read"
        return Teacher(model.loaded, divergence).compare

    def rest(self, folder: Path) -> None:
        """Offload all weights that are not the policy's, except while scoring."""
        for model in self._models:
            if isinstance(model, FrozenReference):
                model.rest(folder, name="teacher")

    def share_weights(self, cut: Cut) -> None:
        """See `LocalPolicy.share_weights`."""
        for model in self._models:
            if isinstance(model, FrozenReference):
                model.share_weights(cut)
