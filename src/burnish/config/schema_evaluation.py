"""The held-out evaluation section of a run file; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from burnish.config.section import NonNegativeInt, PositiveInt, Section, Temperature


class EvaluationConfig(Section):
    """Held-out evaluation."""

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("samples", "temperature", "success", "success_score"), "only the evaluation of `burnish rl` samples responses"
    )

    every_steps: PositiveInt | None = 10
    """Steps between evaluations. The last step is always evaluated. `null`: never evaluate."""
    at_start: bool | None = None
    """Evaluate the untrained model first, so that the curve has a starting point. `null`: only if `every_steps` is set
    and `start_step` is 0."""
    start_step: NonNegativeInt = 0
    """First step that may be evaluated. The last step is always evaluated."""
    max_prompts: PositiveInt | None = 256
    """Evaluate at most this many prompts, always the same ones. `null`: all."""

    @property
    def begins(self) -> bool:
        """True if the untrained model is evaluated."""
        return self.every_steps is not None and not self.start_step if self.at_start is None else self.at_start

    @property
    def happens(self) -> bool:
        """True if the run evaluates at all."""
        return self.begins or self.every_steps is not None

    def due(self, step: int, *, last: bool) -> bool:
        """Return whether to evaluate after this step; `last`: it is the run's last."""
        if self.every_steps is None:
            return False
        return last or (step >= self.start_step and step % self.every_steps == 0)


class RlEvaluationConfig(EvaluationConfig):
    """Held-out evaluation."""

    samples: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Samples per prompt (for pass@k and maj@k), in addition to the greedy response."""
    temperature: Temperature = 1.0
    """Temperature of those samples."""
    success: str | None = None
    """Label of the reward that decides whether a response is solved (for accuracy, pass@k, maj@k), or `label/part` for
    one of its parts. `null`: every reward that compares the response with the answer, as in `burnish check`; without
    one, these metrics are not measured."""
    success_score: float | None = None
    """Score of that reward, before its weight, at which a response counts as solved. `null`: its best score, which
    built-in rewards declare (`burnish check --list`) and which is 1 for your own. Required for a reward model."""


class StopConfig(Section):
    """Early stopping on one metric. If several conditions are set, any of them ends the run."""

    metric: str
    """Metric to watch, as named in metrics.jsonl: `eval/accuracy`, `eval/loss`, `reward/mean`."""
    above: float | None = None
    """End the run once the metric is at least this."""
    below: float | None = None
    """End the run once the metric is at most this."""
    no_better_for: PositiveInt | None = None
    """End the run after this many measurements in a row (evaluations, for an evaluation metric) without a new best."""
