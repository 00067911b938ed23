"""A kind of run that a user could add: `burnish count` trains a model to go on with rows of numbers.

All of it is in this file and in `counting_run`, and registered below in the way in which the built-in kinds are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from burnish.cli.arguments import Overrides, RunFile
from burnish.cli.training import AcceptChanges, Fresh, train_from_file
from burnish.config.checks import check_training
from burnish.config.kinds import Kind, register
from burnish.config.schema_cluster import TrainersConfig
from burnish.config.schema_optimization import BatchOptimizationConfig
from burnish.config.schema_run import RunConfig
from burnish.config.section import PositiveInt, refuse
from burnish.planning.memory import RoleMemory
from burnish.planning.plan import ModelRole, Plan, PlanLine, Preview
from burnish.planning.timing import StepTimes


class CountingConfig(RunConfig):
    """Run file of `burnish count`."""

    kind: ClassVar[str] = "count"

    steps: PositiveInt = 4
    """Optimizer steps."""
    highest: PositiveInt = 9
    """Highest number in a row."""
    rows_per_step: PositiveInt = 4
    """Rows in one optimizer step."""
    optimization: BatchOptimizationConfig = BatchOptimizationConfig(learning_rate=0.01)
    cluster: TrainersConfig = TrainersConfig()

    @model_validator(mode="after")
    def _consistent(self) -> CountingConfig:
        refuse([*check_training(self)])
        return self

    @property
    def longest_text(self) -> int:
        return self.highest + 1


def rows_of(config: CountingConfig, split: str) -> list[list[int]]:
    files = [source.path for source in (config.data.train if split == "train" else config.data.eval)]
    return [json.loads(line)["numbers"] for file in files for line in Path(file).read_text().splitlines()]


def preview_counting(config: CountingConfig, facts: object, *, here: bool) -> Preview:
    rows = rows_of(config, "train")
    return Preview(len(rows), sum(map(len, rows)), notes=() if here else ("counted for another machine",))


def plan_counting(config: CountingConfig, data: Preview, facts: object) -> Plan:
    line = PlanLine("one step", "rows", str(config.rows_per_step), "rows_per_step")
    passes = config.steps * config.rows_per_step / data.rows if data.rows else None
    return Plan(config.steps, config.steps, passes, (ModelRole("policy", "learns to count"),), (line,))


class CountingTable(RoleMemory):
    @staticmethod
    def pass_tokens(config: Any) -> int:
        return min(config.optimization.microbatch_tokens, config.rows_per_step * config.longest_text)


class CountingTimes(StepTimes):
    def sizes(self) -> tuple[float, float]:
        return self.config.rows_per_step, self.config.rows_per_step  # type: ignore[attr-defined]


def train_to_count(
    file: RunFile, overrides: Overrides = None, fresh: Fresh = False, accept_changes: AcceptChanges = False
) -> None:
    """Train a model to count."""
    train_from_file("count", file, overrides or (), fresh=fresh, accept_changes=accept_changes)


COUNTING = Kind(
    name="count",
    trains="a model, to go on with rows of numbers",
    run_file="counting_kind:CountingConfig",
    command="counting_kind:train_to_count",
    function="count",
    plan="counting_kind:plan_counting",
    memory="counting_kind:CountingTable",
    time="counting_kind:CountingTimes",
    preview="counting_kind:preview_counting",
    train="counting_run:train_counting",
    evaluate="counting_run:evaluate_counting",
)
register(COUNTING)
