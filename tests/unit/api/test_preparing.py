"""From the arguments of a call to a configuration: what overrides what."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from burnish.api import training
from burnish.api.inputs import Inputs
from burnish.api.preparing import prepare
from burnish.config.loading import load_run_data
from burnish.errors import BurnishError, DifferentRunError

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
    loaded = prepare("rl", {**run("a.jsonl"), "rewards": first}, {"rewards": second}, inputs, "burnish.train")
    (reward,) = loaded.config.rewards  # type: ignore[union-attr]
    assert inputs.functions == {reward.name: second}


def test_what_is_wrong_with_a_changed_run_file_comes_before_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names are those of the run file that is being changed, and were right when the run began."""
    different = Mock(side_effect=DifferentRunError("it differs"))
    monkeypatch.setattr(training, "load", lambda place: different)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    run = {"output": str(tmp_path / "run"), "model": "m/m", "data": {"train": str(tmp_path / "rows.jsonl")}}
    for reward, said in (("mth", "no built-in reward 'mth'"), (f"{tmp_path}/x.py:f", "there is no file")):
        loaded = load_run_data(run | {"rewards": reward})
        with pytest.raises(BurnishError, match=said):
            training.trained(loaded, Console(quiet=True), accept_changes=False)
    with pytest.raises(DifferentRunError, match="it differs"):
        training.trained(load_run_data(run | {"rewards": "exact"}), Console(quiet=True), accept_changes=False)
