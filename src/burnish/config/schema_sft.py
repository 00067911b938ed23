"""The sections of a run file of `burnish sft`; see `burnish.config.schema`."""

from __future__ import annotations

from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_optimization import SftOptimizationConfig
from burnish.config.schema_run import RunConfig
from burnish.config.section import PositiveInt


class SftFields(RunConfig):
    """Fields of a run file of `burnish sft`."""

    steps: PositiveInt | None = None
    """Optimizer steps. `null`: `optimization.epochs` passes over the data."""
    max_tokens: PositiveInt = 2048
    """Longest example (prompt and completion), in tokens; see `data.over_long`."""
    optimization: SftOptimizationConfig = SftOptimizationConfig()
    cluster: TrainersConfig = TrainersConfig()
