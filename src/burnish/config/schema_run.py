"""Sections and fields that every run file has; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BeforeValidator

from burnish.config.schema_data import DataConfig, ModelConfig
from burnish.config.schema_evaluation import EvaluationConfig
from burnish.config.section import NonNegativeInt, NotHere, OutputPath, PositiveInt, Section, as_list, path_shorthand


class CheckpointConfig(Section):
    """What is saved."""

    every_steps: PositiveInt | None = 50
    """Save after every so many steps (and after the last); none saves only at the end."""
    keep: PositiveInt = 2
    """Checkpoints kept; older ones are removed after a newer one is safe on disk."""

    def due(self, step: int, *, last: bool) -> bool:
        """Whether to save after this step, where `last` says that it is the run's last one."""
        return last or (self.every_steps is not None and step % self.every_steps == 0)


class LoggingConfig(Section):
    """What is shown and written (metrics.jsonl is always written)."""

    not_here: ClassVar[Mapping[str, NotHere]] = {"record_rollouts": NotHere("only `burnish rl` has rollouts", was=True)}

    sinks: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ("tensorboard",)
    """Further sinks for the metrics: `tensorboard`, `wandb`, `mlflow`, `package.module:Class` or
    `path/to/file.py:Class`."""
    project: str = "burnish"
    """Project name for wandb and mlflow."""


class RlLoggingConfig(LoggingConfig):
    """What is shown and written (metrics.jsonl is always written)."""

    record_rollouts: bool = True
    """Write every rollout, before any filter, to rollouts/step-*.jsonl."""


class DebugConfig(Section):
    """Switches for looking into a doubt."""

    plain: bool = False
    """Take the plain path everywhere: each row by itself, padded, its prompt read once a row; all logits at once, and
    PyTorch's own gradients. The same numbers, slower; when they differ, a fast path is wrong."""


class RunConfig(Section):
    """Fields that every run has."""

    output: OutputPath = "runs/burnish"
    """Folder of the run; starting again in it resumes."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    model: Annotated[ModelConfig, BeforeValidator(path_shorthand)]
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    debug: DebugConfig = DebugConfig()
