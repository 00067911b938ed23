"""Sections and fields common to all run files, and the fields of `burnish sft`; see `burnish.config.schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_data import DataConfig, DataSource, ModelConfig
from burnish.config.schema_evaluation import EvaluationConfig
from burnish.config.schema_optimization import SftOptimizationConfig
from burnish.config.section import NonNegativeInt, OutputPath, PositiveInt, Section, as_list, shorthand


class CheckpointConfig(Section):
    """Steps between checkpoints, and the number of checkpoints to keep."""

    every_steps: PositiveInt | None = 50
    """Steps between two checkpoints. The last step is always saved. `null`: save only at the end."""
    keep: PositiveInt = 2
    """Number of checkpoints to keep. Older ones are removed once a newer one is safely on disk."""

    def due(self, step: int, *, last: bool) -> bool:
        """Return whether to save after this step; `last`: it is the run's last."""
        return last or (self.every_steps is not None and step % self.every_steps == 0)


class LoggingConfig(Section):
    """Destinations of metrics and rollouts (metrics.jsonl is always written)."""

    not_here: ClassVar[Mapping[str, str]] = {"record_rollouts": "only `burnish rl` has rollouts"}

    sinks: Annotated[tuple[str, ...], BeforeValidator(as_list)] = ("tensorboard",)
    """Sinks for the metrics in addition to metrics.jsonl: `tensorboard`, `wandb`, `mlflow`, `package.module:Class` or
    `path/to/file.py:Class`."""
    project: str = "burnish"
    """Project name for wandb and mlflow."""


class RlLoggingConfig(LoggingConfig):
    """Destinations of metrics and rollouts (metrics.jsonl is always written)."""

    record_rollouts: bool = True
    """Write every rollout, before any filtering, to rollouts/step-*.jsonl."""


class DebugConfig(Section):
    """Switches for debugging."""

    plain: bool = False
    """Use only plain paths: rows are separate and padded, each reads its prompt again, all logits are computed at once,
    and gradients are PyTorch's own. The numbers are the same, only slower; if they differ, a fast path is wrong."""


class RunConfig(Section):
    """Fields of every run."""

    output: OutputPath = "runs/burnish"
    """Folder of the run. Starting again in the same folder resumes the run."""
    seed: NonNegativeInt = 0
    """Seed for everything random in the run."""
    model: Annotated[ModelConfig, shorthand("path")]
    data: DataConfig = DataConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    debug: DebugConfig = DebugConfig()

    def named_sources(self, split: Literal["train", "eval"]) -> dict[str, DataSource]:
        """The training or held-out data sets of the run, by the field that names each (`data.train.0`)."""
        own = self.data.train if split == "train" else self.data.eval
        return {f"data.{split}.{index}": source for index, source in enumerate(own)}


class SftFields(RunConfig):
    """Fields of a run file of `burnish sft`."""

    steps: PositiveInt | None = None
    """Optimizer steps. `null`: `optimization.epochs` passes over the data."""
    max_tokens: PositiveInt = 2048
    """Longest example (prompt and completion), in tokens; see `data.over_long`."""
    optimization: SftOptimizationConfig = SftOptimizationConfig()
    cluster: TrainersConfig = TrainersConfig()
