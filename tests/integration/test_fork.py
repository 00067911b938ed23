"""A fork goes on where another run was: with nothing changed, bit for bit as that run did."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, BuildSft, num_rows, rows_of, run_file, trace, trained

import burnish
from burnish.checkpointing.comparing import common_steps, first_difference
from burnish.cli import main

Original = tuple[str, Path]
BUSY = {
    "steps": 5,
    "algorithm": {"preset": "reinforce_plus_plus", "kl_target": 0.05, "kl_horizon": 100},
    "optimization": {"learning_rate": 1e-2, "minibatches": 2},
    "evaluation": {"every_steps": 2, "max_prompts": 5},
    "checkpoint": {"every_steps": 2, "keep": 9},
}


@pytest.fixture
def original(tiny_run: BuildRl) -> Original:
    """A run file and the folder of its run, which has checkpoints of the steps 2, 4 and 5."""
    config = tiny_run(**BUSY)
    return run_file(config), trained(config)


@pytest.mark.slow
def test_a_fork_with_nothing_changed_is_the_original(original: Original, commands: Any, tmp_path: Path) -> None:
    """Also when it is killed before and after its first checkpoint, and started by the same command."""
    file, first = original
    words = ("rl", file, "--fork", f"{first}@2", f"output={tmp_path / 'fork'}")
    for lines in (3, 5):
        command = commands.start(*words)
        assert command.wait_for(lambda lines=lines: num_rows(tmp_path / "fork") >= lines)
        command.kill()
        assert command.code == -signal.SIGKILL
    commands.finish(*words)
    ours, theirs = trace(first), trace(tmp_path / "fork")
    assert theirs.metrics == ours.metrics
    assert theirs.state == ours.state
    assert theirs.rollouts == {name: text for name, text in ours.rollouts.items() if int(name[5:11]) > 2}


@pytest.mark.slow
def test_a_program_forks_a_run(original: Original, tmp_path: Path) -> None:
    _, first = original
    run = burnish.load_run(f"{first}@2")
    fork = burnish.train(run.config.model_dump(mode="json"), fork=run, output=str(tmp_path / "fork"), quiet=True)
    ours, theirs = trace(fork.output), trace(first)
    assert (ours.metrics, ours.state) == (theirs.metrics, theirs.state)


@pytest.mark.slow
def test_a_fork_with_another_learning_rate(
    original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first = original
    fork = tmp_path / "fork"
    words = ["rl", file, "--fork", f"{first}@4", f"output={fork}", "steps=6"]
    assert main([*words, "optimization.learning_rate=1e-3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{fork} is forked from the checkpoint of step 4 of {first}" in said
    assert "optimization.learning_rate: 0.01 before, 0.001 now" in said
    environment = json.loads((fork / "environment.json").read_text())
    assert environment["forked_from"] == {"run": str(first), "step": 4}
    assert len(environment["starts"]) == 1
    assert rows_of(fork)[:5] == rows_of(first)[:5]  # the evaluation before the first step, and four steps
    found = first_difference(first, fork, common_steps(first, fork))
    assert found is not None
    assert (found.step, found.quantity) == (5, "loss")  # of the second minibatch
    assert os.stat(first / "checkpoints/step-000004/policy/model.safetensors").st_nlink == 2  # no bytes are copied
    assert main([*words, "optimization.learning_rate=1e-4"]) == 2  # it is another run by now
    assert "a run with a different configuration" in capsys.readouterr().err
    assert main(["rl", file, "--fork", f"{first}@2", f"output={fork}"]) == 2
    assert "was not forked from the checkpoint of step 2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fork_with_no_step_left_loses_nothing(
    original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first = original
    assert main(["rl", file, "--fork", f"{first}@5", f"output={tmp_path / 'fork'}"]) == 0
    said = capsys.readouterr().out
    assert "nothing to do" in said
    assert "was removed" not in said


def test_a_record_without_checkpoints_and_a_fork_that_lacks_a_critic_are_refused(
    original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first = original
    words = ["algorithm.estimator=gae", f"output={tmp_path / 'fork'}"]
    assert main(["rl", file, "--fork", f"{first}@4", *words]) == 2
    assert "is of a run that trained no critic" in capsys.readouterr().err
    shutil.rmtree(first / "checkpoints")
    assert main(["rl", file]) == 2
    assert "ended after step 5, but no checkpoint of it" in capsys.readouterr().err
    assert num_rows(first) > 4


@pytest.mark.slow
def test_a_fork_that_could_not_begin_leaves_its_folder_to_the_next_one(
    original: Original, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first = original
    words = ["rl", file, "--fork", f"{first}@4", f"output={tmp_path / 'fork'}"]
    assert main([*words, "rollout.max_prompt_tokens=1"]) == 2  # no prompt is that short
    assert main([*words, "steps=6"]) == 0
    assert [row["step"] for row in rows_of(tmp_path / "fork")] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_fork_is_of_the_same_kind(
    tiny_sft: BuildSft, tiny_run: BuildRl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_file(tiny_sft("steps=4", "checkpoint.every_steps=2", f"output={tmp_path / 'sft'}"))
    assert main(["sft", text]) == 0
    assert main(["sft", text, "--fork", f"{tmp_path / 'sft'}@2", f"output={tmp_path / 'fork'}"]) == 0
    ours, theirs = trace(tmp_path / "fork"), trace(tmp_path / "sft")
    assert (ours.metrics, ours.state) == (theirs.metrics, theirs.state)
    file = run_file(tiny_run())
    for place, message in (
        (tmp_path / "sft", "which `burnish rl` cannot continue"),
        (tmp_path / "none", "which is not the folder of a run"),
        (f"{tmp_path / 'sft'}@9", "no checkpoint of step 9"),
    ):
        assert main(["rl", file, "--fork", str(place)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
