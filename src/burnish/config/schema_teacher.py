"""The `teacher` section of run files; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from burnish.config.problems import Problem
from burnish.config.section import Count, PathText, Seconds, Section, Url, shorthand

OWN_POLICY = "policy"
"""The `path` of a teacher with the weights that the policy has when the run starts."""


class TeacherPlace(Section):
    """Place of a teacher: a model to load, or one at an endpoint."""

    path: PathText | None = None
    """Folder, run (`runs/big@best`) or hub name of the teacher. This or `url` is required."""
    url: Url | None = None
    """Address, up to and with /v1, of an OpenAI-compatible endpoint that answers with log-probabilities of prompts
    (vLLM, `burnish serve`), in place of `path`. The fields up to `timeout_seconds` are for such a teacher."""
    name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the model at the endpoint."""
    key_variable: str | None = None
    """Environment variable that holds the endpoint's key. `null`: no key."""
    tokenizer: PathText | None = None
    """Folder or hub name of the teacher's tokenizer, to be compared with that of the trained model. `null`: texts of
    token ids from all over the vocabulary are compared, as the endpoint gives them."""
    concurrency: Count = 16
    """Requests on their way at the same time, at most."""
    timeout_seconds: Seconds = 600.0
    """Limit for the answer to one text, with all tries. Afterwards the run ends with an error."""

    def misplaced(self, field: str) -> Iterator[Problem]:
        """Refuse a teacher that is in two places or in none. field: its section."""
        if (self.path is None) == (self.url is None):
            message = "is not set, and neither is url" if self.url is None else "is set, and so is url"
            yield Problem(f"{field}.path", message, "name a model's path, or the address of its endpoint")
        if self.url is None:
            for name in sorted(_OF_ENDPOINT & self.model_dump(exclude_defaults=True).keys()):
                yield Problem(f"{field}.{name}", "is set, but has no effect without url", "remove it")
        elif self.name is None:
            message = "is not set, but the teacher is at an endpoint"
            yield Problem(f"{field}.name", message, "name the model as the endpoint does")


_OF_ENDPOINT = {"name", "key_variable", "tokenizer", "concurrency", "timeout_seconds"}


class TeacherConfig(TeacherPlace):
    """A frozen model that scores the tokens of the policy's responses, for the estimator `opd` (docs/distillation.md).

    It must have the policy's vocabulary. Its precision is `model.dtype` and its temperature `rollout.temperature`; at
    an endpoint the temperature is 1.
    """

    path: PathText | None = None
    """Folder, run (`runs/big@best`) or hub name of the teacher; `policy` is the policy at the start of the run. This or
    `url` is required."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the teacher: of log T - log S in the advantages, or of the divergence in the loss."""
    prompt: Annotated[str, Field(min_length=1)] | None = None
    """Template of the teacher's own prompt. It replaces the last turn of a conversation, or an entire text prompt, and
    may contain `{prompt}` (the text it replaces), `{answer}` and any column of the row. `null`: the policy's prompt."""
    compare: Literal["sampled", "vocabulary"] = "sampled"
    """`sampled`: compare the probabilities of the sampled tokens, in the advantages. `vocabulary`: minimise the reverse
    KL over all tokens at each sampled position, which has less variance and uses no advantages
    (docs/distillation.md)."""

    @property
    def model(self) -> str | TeacherConfig:
        """The model that teaches, equal for sections that name the same one: a path, or what concerns an endpoint."""
        return self.path or self.model_copy(update={"weight": 1.0, "prompt": None})


Teacher = Annotated[TeacherConfig | None, shorthand("path")]
