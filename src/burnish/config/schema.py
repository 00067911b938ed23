"""The run file as types: one class per section, one docstring per field (the reference page is generated from them).

The sections are in `schema_*`; the classes here combine them into run files and check that their fields agree
(`checks*`). Validators look only at values: they read no file, load no model and change no value. Presets are applied
before validation (`burnish.config.loading`), so the values seen here are final.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from burnish.config.checks import check_sft
from burnish.config.checks_rl import check_rl
from burnish.config.checks_rm import check_rm
from burnish.config.schema_reward import RewardConfig
from burnish.config.schema_rl import (
    AlgorithmConfig,
    CriticConfig,
    RlFields,
    RolloutConfig,
    SandboxConfig,
    ScoringConfig,
    VllmConfig,
)
from burnish.config.schema_rm import RmFields
from burnish.config.schema_run import RunConfig, SftFields
from burnish.config.section import refuse

__all__ = [
    "RUN_FILES",
    "AlgorithmConfig",
    "CriticConfig",
    "Kind",
    "RewardConfig",
    "RlConfig",
    "RmConfig",
    "RolloutConfig",
    "RunConfig",
    "SandboxConfig",
    "ScoringConfig",
    "SftConfig",
    "VllmConfig",
]

Kind = Literal["rl", "sft", "rm"]
"""The command that a run file is for."""


class RlConfig(RlFields):
    """Run file of `burnish rl` (and of `eval`, `plan` and `check`)."""

    @model_validator(mode="after")
    def _consistent(self) -> RlConfig:
        refuse(check_rl(self))
        return self


class SftConfig(SftFields):
    """Run file of `burnish sft`."""

    @model_validator(mode="after")
    def _consistent(self) -> SftConfig:
        refuse(check_sft(self))
        return self


class RmConfig(RmFields):
    """Run file of `burnish rm`, which trains a reward model on comparisons of responses."""

    @model_validator(mode="after")
    def _consistent(self) -> RmConfig:
        refuse(check_rm(self))
        return self


RUN_FILES: dict[Kind, type[RunConfig]] = {"rl": RlConfig, "sft": SftConfig, "rm": RmConfig}
