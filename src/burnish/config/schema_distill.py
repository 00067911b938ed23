"""The run file of `burnish distill`, with its checks; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from burnish.config.problems import Problem
from burnish.config.schema import SftConfig
from burnish.config.schema_cluster import Offloaded
from burnish.config.schema_teacher import OWN_POLICY, TeacherPlace
from burnish.config.section import Fraction, NamedPlace, PathText, PositiveInt, Temperature, refuse, shorthand

SAMPLED_ROWS = 64
"""Responses that a student samples at once."""
COMPLETE = "complete"
"""Name of the file that says that the folder of `teacher.cache` holds all texts of its last run."""


class TextTeacherConfig(TeacherPlace):
    """The frozen model that the student learns from.

    Its token ids must mean the same as the student's. At an endpoint it needs `cache`.
    """

    dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of its weights. `null`: `model.dtype`."""
    cache: PathText | None = None
    """Folder for the teacher's `top_k` likeliest tokens at each token of the texts (docs/distill_texts.md). They are
    computed before the student is loaded; runs with the same teacher, texts, `temperature` and `top_k` read them and
    load no teacher. `null`: the teacher reads each batch."""


class DistillConfig(SftConfig):
    """Run file of `burnish distill`."""

    kind: ClassVar[str] = "distill"
    may_rest: ClassVar[tuple[Offloaded, ...]] = ("optimizer", "teacher")
    refused: ClassVar[tuple[str, ...]] = ("token_loss", "neftune_alpha")

    teacher: Annotated[TextTeacherConfig, shorthand("path")]
    divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "forward_kl"
    """Divergence to minimise between the student's and the teacher's token distributions (docs/distill_texts.md)."""
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """`jsd`: share of the teacher in the mixture that both models are compared with."""
    temperature: Temperature = 1.0
    """Temperature of both distributions; the divergence is multiplied by its square."""
    top_k: PositiveInt | None = None
    """Compare only this many of the teacher's most likely tokens, and all others as one: a lower bound on the
    divergence. `null`: all tokens."""
    hard_weight: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the loss given to the cross-entropy on the texts; the divergence has the rest."""
    sampled_share: Fraction = 0.0
    """Share of steps that train on responses sampled by the student (https://arxiv.org/abs/2306.13649): to the prompts
    of the texts, at temperature 1, up to `max_tokens` including the prompt. Their loss is the divergence alone."""

    @property
    def teacher_sources(self) -> tuple[str, ...]:
        return () if self.teacher.path is None else (self.teacher.path,)

    def named_places(self) -> Iterator[NamedPlace]:
        yield from super().named_places()
        if self.teacher.path is not None:
            yield NamedPlace("teacher.path", self.teacher.path, "model", "weights")

    @model_validator(mode="after")
    def _consistent_distillation(self) -> DistillConfig:
        refuse([*self.teacher.misplaced("teacher"), *_unread(self), *_elsewhere(self), *_cached(self), *_asked(self)])
        return self


def _unread(config: DistillConfig) -> Iterator[Problem]:
    """Refuse settings that the other settings leave without an effect."""
    if config.teacher.path == OWN_POLICY:
        message = "is policy, but a student that its own weights teach learns nothing"
        yield Problem("teacher.path", message, "name a folder, a run or a hub name")
    if config.beta != DistillConfig.model_fields["beta"].default and config.divergence != "jsd":
        message = f"is {config.beta:g}, but divergence is {config.divergence}, which has none"
        yield Problem("beta", message, "set divergence: jsd, or remove it")
    if config.hard_weight and config.sampled_share == 1:
        message = f"is {config.hard_weight:g}, but with sampled_share 1 no step trains on the texts"
        yield Problem("hard_weight", message, "remove it, or lower sampled_share")
    if config.token_loss != "nll":
        yield Problem("token_loss", f"is {config.token_loss}, but distillation minimises a divergence", "remove it")
    if config.neftune_alpha is not None:
        message = f"is {config.neftune_alpha:g}, but a student reads the same input as its teacher"
        yield Problem("neftune_alpha", message, "remove it")


def _cached(config: DistillConfig) -> Iterator[Problem]:
    """Refuse a cache of what no folder could hold, or nobody has computed."""
    if config.teacher.cache is None:
        return
    if config.top_k is None:
        message = "is set, but top_k is null: distributions over all tokens are not kept"
        yield Problem("teacher.cache", message, "set top_k, to 64 for example, or remove it")
    if config.sampled_share:
        message = f"is set, but sampled_share is {config.sampled_share:g}: the teacher has to read what is sampled"
        yield Problem("teacher.cache", message, "remove one of the two")
    if "teacher" in config.cluster.offload:
        message = "names teacher, but with teacher.cache there is none while the student learns"
        yield Problem("cluster.offload", message, "remove teacher from it")


def _asked(config: DistillConfig) -> Iterator[Problem]:
    """Refuse what a teacher at an endpoint cannot do."""
    teacher, because = config.teacher, "but the teacher is at an endpoint"
    if teacher.url is None:
        return
    if teacher.cache is None:
        message = f"is not set, {because}, which is asked about each text once, before the student is loaded"
        yield Problem("teacher.cache", message, "name a folder")
    if teacher.dtype is not None:
        yield Problem("teacher.dtype", f"is {teacher.dtype}, {because}, which has its own", "remove it")
    if config.temperature != 1:
        message = f"is {config.temperature:g}, {because}, which scores at temperature 1"
        yield Problem("temperature", message, "remove it, or name the model's path")


def _elsewhere(config: DistillConfig) -> Iterator[Problem]:
    """Refuse what a student in other processes cannot do."""
    cluster = config.cluster
    if cluster.sharding == "full" and cluster.trainers > 1:
        message = "is full, which has not been tried with a teacher"
        yield Problem("cluster.sharding", message, "set it to whole or optimizer, or remove it")
    if config.sampled_share and cluster.uses_processes:
        message = f"is {config.sampled_share:g}, but the student samples only in the command's own process"
        yield Problem("sampled_share", message, "set cluster.trainers: 1 and cluster.backend: inline, or remove it")
