"""The `teacher` section of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.config.section import PathText, Section, shorthand

OWN_POLICY = "policy"
"""The `path` of a teacher with the weights that the policy has when the run starts."""


class TeacherConfig(Section):
    """A frozen model that scores the tokens of the policy's responses, for the estimator `opd` (docs/distillation.md).

    It must have the policy's vocabulary. Its precision is `model.dtype` and its temperature `rollout.temperature`.
    """

    path: PathText
    """Folder, run (`runs/big@best`) or hub name of the teacher; `policy` is the policy at the start of the run."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the teacher: of log T - log S in the advantages, or of the divergence in the loss."""
    prompt: Annotated[str, Field(min_length=1)] | None = None
    """Template of the teacher's own prompt. It replaces the last turn of a conversation, or an entire text prompt, and
    may contain `{prompt}` (the text it replaces), `{answer}` and any column of the row. `null`: the policy's prompt."""
    compare: Literal["sampled", "vocabulary"] = "sampled"
    """`sampled`: compare the probabilities of the sampled tokens, in the advantages. `vocabulary`: minimise the reverse
    KL over all tokens at each sampled position, which has less variance and uses no advantages
    (docs/distillation.md)."""


Teacher = Annotated[TeacherConfig | None, shorthand("path")]
