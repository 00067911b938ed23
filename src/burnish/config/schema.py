"""The run file as types: one class per section, one docstring per field (the reference page is generated from them).

`RlConfig`, `SftConfig` and `RmConfig` are here, other kinds in their own `schema_*` beside the sections. The classes
here combine sections into run files and check that their fields agree (`checks*`). Validators look only at values: they
read no file, load no model and change no value. Presets are applied before validation (`burnish.config.loading`), so
the values seen here are final.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from burnish.config.checks import check_training
from burnish.config.checks_rl import check_rl
from burnish.config.checks_rm import check_rm
from burnish.config.preset_values import own_section
from burnish.config.problems import Problem
from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_domains import RewardConfig
from burnish.config.schema_optimization import SftOptimizationConfig
from burnish.config.schema_rl import AlgorithmConfig, CriticConfig, RlFields, SandboxConfig, ScoringConfig
from burnish.config.schema_rm import RmFields
from burnish.config.schema_rollout import RolloutConfig
from burnish.config.schema_run import RunConfig
from burnish.config.section import IsSet, PositiveInt, refuse
from burnish.types import Json

__all__ = [
    "AlgorithmConfig",
    "CriticConfig",
    "RewardConfig",
    "RlConfig",
    "RmConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "ScoringConfig",
    "SftConfig",
]


class RlConfig(RlFields):
    """Run file of `burnish rl` (and of `eval`, `plan` and `check`)."""

    @model_validator(mode="after")
    def _consistent(self) -> RlConfig:
        refuse(check_rl(self))
        return self

    @classmethod
    def give_way(cls, resolved: dict[str, Json], is_set: IsSet) -> None:
        if is_set("algorithm", "preset"):  # instead of what the run's own preset had set
            resolved["algorithm"] = own_section(cls, resolved, "algorithm")


class SftConfig(RunConfig):
    """Run file of `burnish sft`."""

    kind: ClassVar[str] = "sft"

    steps: PositiveInt | None = None
    """Optimizer steps. `null`: `optimization.epochs` passes over the data."""
    max_tokens: PositiveInt = 2048
    """Longest example (prompt and completion), in tokens; see `data.over_long`."""
    train_on: Literal["all_turns", "last_turn"] = "all_turns"
    """Assistant turns of a conversation to train on, except messages with `train: false` (docs/data.md)."""
    token_loss: Literal["nll", "dft"] = "nll"
    """Loss of a token with probability p: `nll` is -log p, and `dft` is -p log p with no gradient through the factor p
    (https://arxiv.org/abs/2508.05629, docs/algorithms.md)."""
    neftune_alpha: Annotated[float, Field(gt=0)] | None = None
    """Add noise to the input embeddings during training, uniform in ±alpha / sqrt(tokens × width) (NEFTune,
    https://arxiv.org/abs/2310.05914, uses 5, 10 or 15). `null`: no noise."""
    optimization: SftOptimizationConfig = SftOptimizationConfig()
    cluster: TrainersConfig = TrainersConfig()

    @model_validator(mode="after")
    def _consistent(self) -> SftConfig:
        problems = [*check_training(self)]
        if self.data.query is not None:
            message = "is set, but supervised fine-tuning trains on entire documents"
            problems.append(Problem("data.query", message, "remove it"))
        refuse(problems)
        return self


class RmConfig(RmFields):
    """Run file of `burnish rm`, which trains a reward model on comparisons of responses."""

    @model_validator(mode="after")
    def _consistent(self) -> RmConfig:
        refuse(check_rm(self))
        return self
