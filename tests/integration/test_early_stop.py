"""Runs that end early: of every kind, evaluated and saved at their last step, and the same after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, BuildSft, ctrl_c_in_step, rows_of, trace, train, trained, untimed_rows

import burnish
from burnish.errors import ConfigError
from burnish.observability.control import read_ending

pytestmark = pytest.mark.slow

NEVER_BETTER = {"metric": "eval/token_accuracy", "no_better_for": 2}


def test_an_interrupted_run_ends_early_at_the_same_step_and_bit(
    tiny_sft: BuildSft, tmp_path: Path, one_thread: None
) -> None:
    """A learning rate of nearly 0 makes nothing better: evaluations 0, 2 and 4, of which the last two count."""
    fields = {"stop_when": NEVER_BETTER, "evaluation": {"every_steps": 2}}
    words = ("optimization.learning_rate=1e-12",)
    straight, said = train(tiny_sft(*words, f"output={tmp_path}/straight", **fields))
    assert "eval/token_accuracy was best at" in said
    assert [row["step"] for row in rows_of(straight)] == [0, 1, 2, 3, 4]
    config = tiny_sft(*words, **fields)
    with ctrl_c_in_step(3):
        folder = trained(config)
    assert read_ending(folder) is None
    train(config)
    assert untimed_rows(folder) == untimed_rows(straight)
    assert trace(folder) == trace(straight)
    ends = [json.loads((place / "finished.json").read_text()) for place in (folder, straight)]
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 4
    assert burnish.load_run(folder).stopped is False


def test_the_step_that_decides_is_evaluated_and_saved_and_the_run_can_go_on(
    tiny_run: BuildRl, one_thread: None
) -> None:
    fields: dict[str, Any] = {"steps": 3, "evaluation": {"every_steps": 3, "max_prompts": 4}}
    config = tiny_run(stop_when={"metric": "reward/mean", "above": -1.0}, **fields)
    folder, said = train(config)
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [0, 1]
    assert "eval/reward_mean" in rows[-1]
    assert (folder / "checkpoints" / "step-000001").is_dir()
    assert "ended before step 3: reward/mean is" in said
    train(config)
    assert rows_of(folder) == rows
    train(tiny_run(**fields))
    assert [row["step"] for row in rows_of(folder)] == [0, 1, 2, 3]
    end = read_ending(folder)
    assert end is not None
    assert (end.step, end.because) == (3, "all steps are made")


@pytest.mark.parametrize("first", [0, 2])
def test_a_misspelt_metric_is_said_at_the_first_evaluation_and_mended_later(
    first: int, tiny_run: BuildRl, one_thread: None
) -> None:
    fields: dict[str, Any] = {"steps": 2, "evaluation": {"every_steps": 2, "at_start": first == 0, "max_prompts": 4}}
    with pytest.raises(ConfigError, match=r"'eval/reward_meen'(.|\n)*did you mean 'eval/reward_mean'"):
        train(tiny_run(stop_when={"metric": "eval/reward_meen", "above": 9}, **fields))
    folder = trained(tiny_run(stop_when={"metric": "eval/reward_mean", "above": 9}, **fields))
    assert [row["step"] for row in rows_of(folder)] == [0, 1, 2][first > 0 :]
