"""From a step's responses to the tensors of its teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.kl import k1
from burnish.config.domains import ALL
from burnish.forward.batch import Batch, present
from burnish.models.roles import Reference
from burnish.trainers.rl.credit.by_domain import Row
from burnish.types import Metric, Prompt, Reduction


@dataclass(frozen=True, slots=True)
class Lesson:
    """Teaching of the prompts of one domain. teacher: its number among the teachers of the run."""

    teacher: int
    weight: float


@dataclass(frozen=True, slots=True)
class Lessons:
    """The teachers of a run, and their lessons by domain; a run without domains has one lesson, for all prompts."""

    teachers: Reference
    by_domain: Mapping[str, Lesson]

    def of(self, prompt: Prompt) -> Lesson:
        """The lesson of the prompt's domain."""
        return self.by_domain[ALL] if ALL in self.by_domain else self.by_domain[prompt.domain]

    def weights(self, rows: Sequence[Row]) -> Tensor:
        """(B,) weight of each row's teacher."""
        return torch.tensor([self.of(group.prompt).weight for group, _ in rows])

    def logprobs(self, batch: Batch, rows: Sequence[Row]) -> Tensor:
        """(B, T) log-probabilities of the response tokens, each row by its own teacher."""
        numbers = [self.of(group.prompt).teacher for group, _ in rows]
        return self.teachers.logprobs(batch.replace(teacher=torch.tensor(numbers)))


def distance_to_teacher(batch: Batch) -> dict[str, Metric]:
    """The reverse KL of the policy to its teachers on the step's responses: an estimate by the sampled tokens."""
    old, teacher = present(batch.old_logprobs, "old_logprobs"), present(batch.teacher_logprobs, "teacher_logprobs")
    mask = batch.loss_mask
    apart = k1(old, teacher, mask=mask).sum()
    return {
        "kl/teacher": Metric(Reduction.MEAN, apart, mask.any(dim=1).sum()),
        "kl/teacher_per_token": Metric(Reduction.MEAN, apart, mask.sum()),
    }
