"""The `teacher` section of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from burnish.config.section import PathText, Section, shorthand

OWN_POLICY = "policy"
"""The `path` of a teacher with the weights that the policy has when the run starts."""


class TeacherConfig(Section):
    """A frozen model that scores the tokens of the policy's responses, for the estimator `opd` (docs/distillation.md).

    Its vocabulary must be the policy's, its precision is `model.dtype`, and its temperature `rollout.temperature`.
    """

    path: PathText
    """Folder, run (`runs/big@best`) or hub name of the teacher; `policy` is the policy at the start of the run."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of what it teaches: of log T - log S in an advantage, or of the divergence in the loss."""
    prompt: Annotated[str, Field(min_length=1)] | None = None
    """Text for the teacher in place of the last turn of a prompt, or of a prompt that is text: a template with
    `{prompt}` for that text, `{answer}`, and any column of the row. `null`: what the policy reads."""
    compare: Literal["sampled", "vocabulary"] = "sampled"
    """`sampled`: the probabilities of sampled tokens, in the advantages. `vocabulary`: the loss is the reverse KL over
    all tokens at each sampled position, which varies less; advantages have no part in it (docs/distillation.md)."""


Teacher = Annotated[TeacherConfig | None, shorthand("path")]
