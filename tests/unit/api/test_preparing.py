"""From the arguments of a call to a configuration: what overrides what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from burnish.api.inputs import Inputs
from burnish.api.preparing import prepare

OWN = [{"prompt": "1+1=", "answer": "2"}]
OTHER = [{"prompt": "1+2=", "answer": "3"}]


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return Inputs(tmp_path / "inputs")


def run(data: object) -> dict[str, Any]:
    return {"model": "m", "data": data, "rewards": "exact"}


def test_rows_that_override_rows_are_the_ones_that_are_written(inputs: Inputs) -> None:
    prepare("rl", run(OWN), {"data": OTHER}, inputs, "burnish.train")
    assert inputs.rows == {"train.jsonl": OTHER}


def test_rows_of_one_split_leave_the_other(inputs: Inputs) -> None:
    prepare("rl", run({"train": OWN, "eval": OWN}), {"data": {"eval": OTHER}}, inputs, "burnish.train")
    assert inputs.rows == {"train.jsonl": OWN, "eval.jsonl": OTHER}


def test_a_table_that_overrides_a_table_is_the_one_that_is_written(inputs: Inputs) -> None:
    from datasets import Dataset

    other = Dataset.from_list(OTHER)
    prepare("rl", run(Dataset.from_list(OWN)), {"data": other}, inputs, "burnish.train")
    assert inputs.tables["train.parquet"] is other


def test_a_function_that_overrides_a_function_is_the_one_that_scores(inputs: Inputs) -> None:
    def two_of_a_name(score: float) -> Any:
        def brief(response: str) -> float:
            return score

        return brief

    first, second = two_of_a_name(1.0), two_of_a_name(2.0)
    loaded = prepare("rl", {**run("a.jsonl"), "rewards": first}, {"rewards": second}, inputs, "burnish.train").loaded
    (reward,) = loaded.config.rewards  # type: ignore[union-attr]
    assert inputs.functions == {reward.name: second}
