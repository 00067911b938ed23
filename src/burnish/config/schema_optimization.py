"""How weights move, in a run file as types; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from burnish.config.section import DecayRate, Fraction, NonNegativeInt, NotHere, Passes, PositiveInt, Section

TOKENS_PER_MICROBATCH = 2_048
"""The default, also of what is built from Python without a run file."""


class OptimizationConfig(Section):
    """How the weights move."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up, down to `final_learning_rate_fraction`."""
    warmup_steps: NonNegativeInt = 0
    """Optimizer steps from 0 up to the peak."""
    final_learning_rate_fraction: Fraction = 0.0
    """Where a linear or cosine schedule ends, as a fraction of the peak."""
    optimizer: Literal["adamw", "adam_tf"] = "adamw"
    """Update rule; `adam_tf` is Adam with `eps` outside the bias correction, as in TensorFlow 1 (decay as in AdamW)."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Term that keeps the division finite."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip the gradient's norm to this; none does not clip."""
    epochs: Passes = 1
    """Passes over the data."""
    tokens_per_microbatch: PositiveInt = TOKENS_PER_MICROBATCH
    """Most tokens (prompt, response and padding) in one forward and backward; changes memory and speed, never the
    result. A micro-batch with several prompts is filled only to half of this; a single prompt and its responses may use
    all of it. On a CPU more is hardly faster; a large GPU has room for more, for example 16,384 (not measured)."""

    @property
    def steps_per_rate(self) -> int:
        """Optimizer steps that share one learning rate."""
        return 1


class RlOptimizationConfig(OptimizationConfig):
    """How the weights of a policy and its critic move."""

    warmup_steps: NonNegativeInt = 0
    """Steps from 0 up to the peak, counted as `schedule_unit` says."""
    epochs: Passes = 1
    """Passes over the step's rollouts, each with a fresh permutation."""
    minibatches: PositiveInt = 1
    """Optimizer steps per pass over the step's rollouts."""
    schedule_unit: Literal["optimizer_step", "step"] = "optimizer_step"
    """When the learning rate moves, and what `warmup_steps` counts: every planned optimizer step, or every step of the
    loop, so that its epochs and minibatches share one rate (both lineage styles, https://arxiv.org/abs/2403.17031).
    Optimizer steps that are skipped (`algorithm.max_epoch_kl`) count all the same."""
    shuffle: Literal["prompts", "responses"] = "prompts"
    """What each epoch puts in a fresh order before it cuts it into minibatches. `prompts`: the responses to a prompt
    stay together (except where a cut separates them), so that each prompt is read once per epoch; `responses`: every
    response by itself, which mixes minibatches better and reads a prompt once per minibatch that it is in."""

    @property
    def steps_per_rate(self) -> int:
        """Optimizer steps that share one learning rate."""
        return self.epochs * self.minibatches if self.schedule_unit == "step" else 1


class BatchOptimizationConfig(OptimizationConfig):
    """How the weights move where one batch of the data is one optimizer step."""

    not_here: ClassVar[Mapping[str, NotHere]] = {
        "minibatches": NotHere("one batch is one optimizer step", was=1),
        "schedule_unit": NotHere("one batch is one optimizer step", was="optimizer_step"),
    }


class SftOptimizationConfig(BatchOptimizationConfig):
    """How the weights move in supervised fine-tuning."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Course of the learning rate after the warm-up, down to `final_learning_rate_fraction`."""
    tokens_per_batch: Annotated[int, Field(ge=1, le=100_000_000)] = 16_384
    """Tokens of one optimizer step: whole examples, at most this many tokens, padding not counted."""
