"""The sections of a run file of `burnish rm`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.config.presets import RM_PRESETS, Preset
from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_data import Sources, places_of_sources
from burnish.config.schema_evaluation import EvaluationConfig
from burnish.config.schema_optimization import BatchOptimizationConfig
from burnish.config.schema_run import RunConfig
from burnish.config.section import (
    Count,
    IsSet,
    NamedPlace,
    NonNegativeInt,
    Passes,
    PathText,
    PositiveInt,
    Section,
    Temperature,
)
from burnish.types import Json


class RmOptimizationConfig(BatchOptimizationConfig):
    """Optimizer, learning rate and batches of a reward model."""

    learning_rate: Annotated[float, Field(gt=0)] = 5e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Learning rate after the warm-up; `linear` and `cosine` fall to `final_learning_rate_fraction` of the peak."""
    comparisons_per_batch: Count = 32
    """Comparisons (not responses) in one optimizer step."""
    epochs: Passes = 1
    """Passes over the data. Reward models overfit in the second pass."""


class RmEvaluationConfig(EvaluationConfig):
    """Held-out evaluation of a reward model."""

    every_steps: PositiveInt | None = 50
    """Steps between evaluations. The last step is always evaluated. `null`: only at the start and the end."""
    at_start: bool | None = None
    """Evaluate the untrained model first, so that the curve has a starting point. `null`: yes."""
    max_prompts: PositiveInt | None = None
    """Evaluate at most this many comparisons, always the same ones. `null`: all."""

    @property
    def begins(self) -> bool:
        """True if the untrained model is evaluated."""
        return self.at_start is not False

    def due(self, step: int, *, last: bool) -> bool:
        """Return whether to evaluate after this step; always after the last one."""
        return last or super().due(step, last=last)


class NormalizationConfig(Section):
    """Zero point and scale of a reward model's scores."""

    kind: Literal["none", "gain_bias", "bias"] = "none"
    """`gain_bias`: mean 0 and standard deviation 1 (2019 style); `bias`: mean 0 only (2020 style)."""
    on: Literal["policy", "references"] = "policy"
    """Measure scores on responses of the untrained policy, or on reference responses (`references`)."""
    before: bool = True
    """Normalise before training."""
    after: bool = True
    """Normalise after training."""
    policy: PathText | None = None
    """Folder of the policy that samples the responses. `null`: the untrained model of this run."""
    prompts: Sources = ()
    """Prompts for the policy. Empty: the prompts of the training comparisons."""
    references: Sources = ()
    """Prompts with reference completions. Empty: the best responses of the training comparisons."""
    responses: Count = 256
    """Number of responses to measure."""
    max_response_tokens: PositiveInt = 128
    """Longest response of the policy, in tokens."""
    temperature: Temperature = 1.0
    """Sampling temperature of the policy."""
    ignore_eos: bool = False
    """Let the policy continue past end-of-sequence tokens and sample exactly max_response_tokens tokens (2019
    style)."""
    trainable: bool = False
    """Keep gain and bias separate from the head and train them as well (2019 style, https://arxiv.org/abs/1909.08593).
    If false, the gain is folded into the head's weights, and the bias stays as normalisation set it."""


class ComparedFields(RunConfig):
    """Fields of run files whose data are comparisons of responses."""

    steps: PositiveInt | None = None
    """Optimizer steps. `null`: `optimization.epochs` passes over the data."""
    max_tokens: PositiveInt = 2048
    """Longest prompt and response together, in tokens; see `data.over_long` (truncation cuts the start of the
    prompt)."""
    candidates: Annotated[int, Field(ge=2)] | None = None
    """Number of responses that each row must have. `null`: as many as the first row."""
    ties: Literal["error", "drop", "half"] = "error"
    """Handling of rows whose `tie` is true: refused, left out, or trained on as half a win for each response (pairs
    only)."""
    bad_rows: Literal["error", "drop"] = "error"
    """Handling of rows with equal or empty responses: refused with file and line, or left out and counted."""
    append_eos: bool = True
    """End text responses with the end-of-sequence token, as finished rollouts do."""
    label_pad_token_id: NonNegativeInt | None = None
    """Padding id in label files of token ids. Padding is removed."""
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the conversations in `data.train` to hold out if there is no `data.eval` (all rows of a conversation
    stay on one side)."""
    optimization: RmOptimizationConfig = RmOptimizationConfig()
    evaluation: RmEvaluationConfig = RmEvaluationConfig()
    cluster: TrainersConfig = TrainersConfig()

    @property
    def holds_out(self) -> bool:
        return super().holds_out or self.held_out_fraction > 0

    @property
    def texts_each(self) -> int:
        return self.candidates or 2

    @classmethod
    def give_way(cls, resolved: dict[str, Json], is_set: IsSet) -> None:
        if is_set("data", "eval"):  # instead of the part that the fraction held out
            resolved["held_out_fraction"] = 0.0


class RmFields(ComparedFields):
    """Fields of a run file of `burnish rm`."""

    kind: ClassVar[str] = "rm"
    presets: ClassVar[Mapping[str, Preset]] = RM_PRESETS
    head: ClassVar[Literal["language", "score"]] = "score"

    preset: str | None = None
    """Name of a style that sets other fields (`oai_2019`, `tldr_2020`). Values in the run file override it."""

    loss: Literal["bradley_terry", "best_of"] = "bradley_terry"
    """Pairwise logistic loss, or cross-entropy of a softmax over any number of candidates."""
    margins: bool = False
    """Pairs: the better response must score higher by the row's `margin`."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Pairs: assumed probability that a label is flipped."""
    center_coef: Annotated[float, Field(ge=0)] = 0.0
    """Pairs: weight of (sum of both scores)^2, which keeps scores near 0."""
    score_at: Literal["last", "eos", "last_position"] = "last"
    """Token whose hidden state is scored. `last`: the last one. `eos`: the first end-of-sequence token of the response
    (the last token if it has none). `last_position`: the last of `response_length` positions, padding or not (2019
    style)."""
    head_init_std: Annotated[float, Field(ge=0)] | None = None
    """Standard deviation of a new head's weights. `null`: 1 / sqrt(d_model + 1) (https://arxiv.org/abs/1909.08593)."""
    response_length: PositiveInt | None = None
    """Fixed length of responses for `score_at: last_position`."""
    normalization: NormalizationConfig = NormalizationConfig()

    def named_places(self) -> Iterator[NamedPlace]:
        yield from super().named_places()
        settings = self.normalization
        if settings.policy is not None:
            yield NamedPlace("normalization.policy", settings.policy, "model", "weights")
        for name, sources in (("prompts", settings.prompts), ("references", settings.references)):
            yield from places_of_sources({f"normalization.{name}.{n}": one for n, one in enumerate(sources)})
