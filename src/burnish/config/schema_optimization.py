"""The optimization section of a run file; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.config.section import DecayRate, Fraction, NonNegativeInt, Passes, PositiveInt, Section

TOKENS_PER_MICROBATCH = 2_048
"""The default, also for objects built from Python without a run file."""
TOKENS_PER_SCORING = 16_384
"""The default of a reward model that scores: more, because nothing is kept for a backward pass."""


class OptimizationConfig(Section):
    """Optimizer, learning rate, passes over the data and size of micro-batches."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; `linear` and `cosine` fall to `final_learning_rate_fraction` of the peak."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps over which the learning rate rises from 0 to its peak."""
    final_learning_rate_fraction: Fraction = 0.0
    """Final learning rate of a linear or cosine schedule, as a fraction of the peak."""
    optimizer: Literal["adamw", "adam_tf", "muon"] = "adamw"
    """Update rule. `adam_tf` is Adam with `eps` outside the bias correction, as in TensorFlow 1 (decay as in AdamW).
    `muon` orthogonalises the momentum of the layers' matrices (https://arxiv.org/abs/2502.16982), and uses AdamW for
    embeddings, heads and vectors, at the same learning rate; several trainers need `cluster.sharding: whole`."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of Adam's two moments."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's epsilon, which keeps the division finite."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip the gradient norm to this. `null`: no clipping."""
    epochs: Passes = 1
    """Passes over the data."""
    tokens_per_microbatch: PositiveInt | Literal["auto"] = TOKENS_PER_MICROBATCH
    """Most tokens (prompt, response and padding) in one forward and backward pass. Affects memory and speed, never the
    result. A micro-batch with several prompts is filled only to half of this; a single prompt and its responses may use
    all of it. Larger values are hardly faster on a CPU. `auto`: on a GPU, as many as the plan of its memory allows,
    tested with one pass at the start and kept when the run is resumed (not yet run on a GPU); elsewhere, the
    default."""

    @property
    def microbatch_tokens(self) -> int:
        """`tokens_per_microbatch` as a number: the default for `auto`, unless `burnish.trainers.microbatch` has chosen
        one."""
        return TOKENS_PER_MICROBATCH if self.tokens_per_microbatch == "auto" else self.tokens_per_microbatch

    @property
    def steps_per_rate(self) -> int:
        """Optimizer steps that share one learning rate."""
        return 1


class RlOptimizationConfig(OptimizationConfig):
    """Optimizer, learning rate and minibatches of the policy and its critic."""

    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises from 0 to its peak, counted in `schedule_unit`."""
    epochs: Passes = 1
    """Passes over the step's rollouts, each in a new order."""
    minibatches: PositiveInt = 1
    """Optimizer steps per pass over the step's rollouts."""
    schedule_unit: Literal["optimizer_step", "step"] = "optimizer_step"
    """Unit in which the learning rate changes and `warmup_steps` counts: planned optimizer steps, or steps of the loop,
    whose epochs and minibatches then share one rate (both lineage styles, https://arxiv.org/abs/2403.17031). Optimizer
    steps skipped by `algorithm.max_epoch_kl` count too."""
    shuffle: Literal["prompts", "responses"] = "prompts"
    """Unit to shuffle in each epoch before it is split into minibatches. `prompts`: the responses to a prompt stay
    together (except where the split separates them), so each prompt is read once per epoch. `responses`: responses are
    shuffled individually, which mixes minibatches better but reads a prompt once per minibatch that contains it."""

    @property
    def steps_per_rate(self) -> int:
        """Optimizer steps that share one learning rate."""
        return self.epochs * self.minibatches if self.schedule_unit == "step" else 1


class BatchOptimizationConfig(OptimizationConfig):
    """Settings of the optimizer where one batch of data is one optimizer step."""

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("minibatches", "schedule_unit"), "one batch is one optimizer step"
    )


class SftOptimizationConfig(BatchOptimizationConfig):
    """Optimizer, learning rate and batches of supervised fine-tuning."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate after the warm-up; `linear` and `cosine` fall to `final_learning_rate_fraction` of the peak."""
    tokens_per_batch: Annotated[int, Field(ge=1, le=100_000_000)] = 16_384
    """Most tokens in one optimizer step, not counting padding. A step has complete examples only."""
