"""Teacher tensors for a step's responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.algorithms.kl import k1
from burnish.config.domains import ALL
from burnish.data.chat import encode_prompt, turns_of
from burnish.data.conversations import fill_template
from burnish.data.rows import Row as DataRow
from burnish.data.template import ChatFormat
from burnish.forward.batch import Batch, present
from burnish.models.roles import Reference
from burnish.trainers.rl.batching import padded
from burnish.trainers.rl.credit.by_domain import Row
from burnish.types import Metric, Prompt, Reduction, Tokenizer


@dataclass(frozen=True, slots=True)
class TeacherPrompts:
    """Prompts of a teacher that reads more than the policy: a template filled in from each prompt's row. field: where
    the run file has it."""

    template: str
    tokenizer: Tokenizer
    chat: ChatFormat
    field: str

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt as the teacher reads it. DataError for a row without a column that the template names."""
        *before, last = turns_of(prompt)
        values = {**prompt.columns, "answer": prompt.answer, "prompt": last.content}
        text = fill_template(self.template, DataRow(0, f"prompt {prompt.id!r}", values), {}, field=self.field)
        if prompt.messages is None:
            return encode_prompt(replace(prompt, text=text), self.tokenizer, self.chat)
        messages = (*before, replace(last, content=text))
        return encode_prompt(replace(prompt, messages=messages), self.tokenizer, self.chat)


@dataclass(frozen=True, slots=True)
class Lesson:
    """Teaching of the prompts of one domain. teacher: its number among the teachers of the run."""

    teacher: int
    weight: float
    prompts: TeacherPrompts | None = None
    """Its own prompts; None if it reads the policy's."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """The teachers of a run, and their lessons by domain; a run without domains has one lesson, for all prompts."""

    teachers: Reference
    by_domain: Mapping[str, Lesson]

    def logprobs(self, batch: Batch, rows: Sequence[Row]) -> Tensor:
        """(B, T) log-probabilities of the response tokens, each row by its own teacher."""
        lessons = [lesson_of(group.prompt, self.by_domain) for group, _ in rows]
        read = batch.replace(teacher=torch.tensor([lesson.teacher for lesson in lessons]))
        if any(lesson.prompts is not None for lesson in lessons):
            prompts = [
                rollout.prompt_tokens if lesson.prompts is None else lesson.prompts.tokens(group.prompt)
                for lesson, (group, rollout) in zip(lessons, rows, strict=True)
            ]
            read = read.replace(
                prompt_tokens=padded(prompts, 0, torch.int64), prompt_lengths=torch.tensor(list(map(len, prompts)))
            )
        return self.teachers.logprobs(read)


def lesson_of(prompt: Prompt, by_domain: Mapping[str, Lesson]) -> Lesson:
    """The lesson of the prompt's domain."""
    return by_domain[ALL if ALL in by_domain else prompt.domain]


def teacher_weights(rows: Sequence[Row], by_domain: Mapping[str, Lesson]) -> Tensor:
    """(B,) weight of each row's teacher."""
    return torch.tensor([lesson_of(group.prompt, by_domain).weight for group, _ in rows])


def distance_to_teacher(batch: Batch) -> dict[str, Metric]:
    """The reverse KL of the policy to its teachers on the step's responses: an estimate by the sampled tokens."""
    old, teacher = present(batch.old_logprobs, "old_logprobs"), present(batch.teacher_logprobs, "teacher_logprobs")
    mask = batch.loss_mask
    apart = k1(old, teacher, mask=mask).sum()
    return {
        "kl/teacher": Metric(Reduction.MEAN, apart, mask.any(dim=1).sum()),
        "kl/teacher_per_token": Metric(Reduction.MEAN, apart, mask.sum()),
    }
