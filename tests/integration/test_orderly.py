"""Whatever ends a run, the steps that it has finished are saved, and the resumed run equals an undisturbed one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from runs import num_rows, train

import burnish.trainers.rl.loop as rl
from burnish.checkpointing.store import CheckpointStore
from burnish.config.schema import RlConfig, RunConfig, SftConfig
from burnish.errors import BurnishError, CheckpointError, DivergenceError, RewardError, RolloutError
from burnish.models.policy import LocalPolicy
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import SftRun, train_sft
from burnish.trainers.telemetry.journal import Journal

pytestmark = pytest.mark.slow

ReadTrace = Callable[[Path], Any]
WriteRunFile = Callable[[RunConfig], str]

BUSY = {
    "steps": 4,
    "optimization": {"learning_rate": 1e-2, "epochs": 2, "minibatches": 2},
    "evaluation": {"every_steps": 2, "at_start": True, "max_prompts": 5},
    "checkpoint": {"every_steps": None},
}

OUTAGE = """
import pathlib
def digits(response: str, answer: str) -> float:
    if pathlib.Path({flag!r}).exists():
        raise OSError("the service is down")
    return sum(a == b for a, b in zip(response, answer)) / 2
"""


def stop_by(error: type[BaseException], config: RlConfig | SftConfig) -> str:
    """What the run that ends in this error said."""
    said = io.StringIO()
    console = Console(file=said, width=200)
    with pytest.raises(error):
        train_rl(config, console=console) if isinstance(config, RlConfig) else train_sft(config, console=console)
    return " ".join(said.getvalue().split())


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*")) if (folder / "checkpoints").exists() else []


def test_a_reward_outage_loses_no_step(
    commands: Any, run_file: WriteRunFile, tiny_run: Callable[..., RlConfig], trace: ReadTrace, tmp_path: Path
) -> None:
    flag, run = tmp_path / "down", tmp_path / "stopped"
    (tmp_path / "reward.py").write_text(OUTAGE.format(flag=str(flag)))
    rewards = [{"name": f"{tmp_path}/reward.py:digits", "label": "d"}]
    words = ("rl", run_file(tiny_run(**{**BUSY, "steps": 20}, rewards=rewards)))
    assert commands.run(*words, f"output={tmp_path}/calm").code == 0
    command = commands.start(*words, f"output={run}")
    assert command.wait_for(lambda: num_rows(run) >= 5)
    flag.touch()
    assert command.wait() == 2, command.output
    assert "the service is down" in command.output
    (saved,) = checkpoints(run)
    assert f"step {int(saved[5:])} is saved; the same command continues from there" in command.output
    assert int(saved[5:]) >= 4
    flag.unlink()
    assert commands.run(*words, f"output={run}").code == 0
    assert trace(run) == trace(tmp_path / "calm")


@pytest.mark.parametrize(
    ("where", "error", "saved"),
    [
        ("before the update", RewardError("down"), 2),
        ("before the update", DivergenceError("nan"), 2),
        ("before the update", ValueError("a callback"), 2),
        ("in the evaluation", RolloutError("gone"), 2),
        ("in the evaluation", SystemExit(3), 2),
        ("in the engine's sync", RolloutError("gone"), 3),
        ("while recording", MemoryError(), 3),
    ],
)
def test_an_error_beside_the_updates_costs_nothing(
    tiny_run: Callable[..., RlConfig],
    trace: ReadTrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: BaseException,
    saved: int,
) -> None:
    config = tiny_run(**BUSY)
    with monkeypatch.context() as patch:
        fail_once(patch, where, error)
        said = stop_by(type(error) if not isinstance(error, MemoryError) else BaseException, config)
    assert checkpoints(tmp_path / "run") == [f"step-{saved:06d}"]
    assert f"step {saved} is saved" in said
    folder, said = train(config)
    assert f"after step {saved}" in said
    calm, _ = train(tiny_run(f"output={tmp_path}/calm", **BUSY))
    found, wanted = trace(folder), trace(calm)
    if where == "while recording":  # what was sampled for the step is the one thing that is lost
        wanted.rollouts.pop("step-000003.jsonl")
        found.rollouts.pop("step-000003.jsonl", None)
    if where == "in the engine's sync":
        assert "step-000003.jsonl" in found.rollouts
    assert found == wanted
    assert not (folder / "checkpoints" / "step-000004" / "pending.json").exists()


def fail_once(patch: pytest.MonkeyPatch, where: str, error: BaseException) -> None:
    """In step 3, or in the evaluation after step 2."""

    def wrap(real: Callable[..., Any], number: int) -> Callable[..., Any]:
        calls = [0]

        def called(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise error
            return real(*arguments, **named)

        return called

    if where == "before the update":
        patch.setattr(rl, "credit_rows", wrap(rl.credit_rows, 3))
    elif where == "in the evaluation":
        patch.setattr(rl.RlRun, "evaluate", wrap(rl.RlRun.evaluate, 2))
    elif where == "in the engine's sync":
        patch.setattr(LocalEngine, "sync", wrap(LocalEngine.sync, 3))
    else:
        patch.setattr(Journal, "record", wrap(Journal.record, 3))


def test_in_the_middle_of_the_updates_the_last_checkpoint_stands(
    tiny_run: Callable[..., RlConfig], trace: ReadTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second optimizer step of step 3: the weights are those of no step any more."""
    config = tiny_run(**{**BUSY, "checkpoint": {"every_steps": 2}})
    real, calls = LocalPolicy.update, [0]

    def update(policy: LocalPolicy, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2 * 4 + 2:
            raise MemoryError
        return real(policy, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPolicy, "update", update)
        said = stop_by(BaseException, config)
    assert "step 3 was stopped in the middle of its updates" in said
    assert "nothing is saved, the newest checkpoint is of step 2" in said
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    folder, _ = train(config)
    calm, _ = train(tiny_run(f"output={tmp_path}/calm", **BUSY))
    assert trace(folder) == trace(calm)


def test_a_failure_in_the_first_minibatch_leaves_the_weights_of_the_last_step(
    tiny_run: Callable[..., RlConfig], trace: ReadTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(**BUSY)
    real = LocalPolicy.accumulate

    def accumulate(policy: LocalPolicy, *arguments: Any) -> None:
        real(policy, *arguments)
        if policy.version == 2 * 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    with monkeypatch.context() as patch:
        patch.setattr(LocalPolicy, "accumulate", accumulate)
        said = stop_by(Exception, config)
    assert "step 2 is saved" in said
    folder, _ = train(config)
    calm, _ = train(tiny_run(f"output={tmp_path}/calm", **BUSY))
    assert trace(folder) == trace(calm)


def test_a_save_that_fails_too_does_not_take_the_place_of_the_error(
    tiny_run: Callable[..., RlConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, "before the update", RewardError("down"))
    monkeypatch.setattr(CheckpointStore, "save", Mock(side_effect=CheckpointError("no room")))
    said = stop_by(RewardError, tiny_run(**BUSY))
    assert "step 2 could not be saved either (CheckpointError: no room" in said
    assert "there is no checkpoint" in said


@pytest.mark.parametrize("where", ["update", "evaluation"])
def test_supervised_fine_tuning_saves_as_well(
    tiny_sft: Callable[..., SftConfig], trace: ReadTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fields = {"checkpoint": {"every_steps": None}, "evaluation": {"every_steps": 4}}
    calls = [0]
    real_update, real_evaluate = LocalPolicy.update, SftRun.evaluate

    def update(policy: LocalPolicy, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if where == "update" and calls[0] == 5:
            raise DivergenceError("nan")
        return real_update(policy, *arguments, **named)

    def evaluate(run: SftRun) -> dict[str, float]:
        if where == "evaluation" and run.progress.step == 4:
            raise MemoryError
        return real_evaluate(run)

    with monkeypatch.context() as patch:
        patch.setattr(LocalPolicy, "update", update)
        patch.setattr(SftRun, "evaluate", evaluate)
        said = stop_by(BaseException, tiny_sft(**fields))
    assert "step 4 is saved" in said
    pending = tmp_path / "run" / "checkpoints" / "step-000004" / "pending.json"
    assert pending.exists() is (where == "evaluation")
    folder, _ = train(tiny_sft(**fields))
    calm, _ = train(tiny_sft(f"output={tmp_path}/calm", **fields))
    assert trace(folder) == trace(calm)


def test_a_run_cut_short_in_its_last_evaluation_is_not_finished(
    tiny_run: Callable[..., RlConfig], trace: ReadTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(**{**BUSY, "evaluation": {"every_steps": 9, "at_start": True, "max_prompts": 5}})
    with monkeypatch.context() as patch:
        fail_once(patch, "in the evaluation", RewardError("down"))
        said = stop_by(BurnishError, config)
    assert "step 4 is saved" in said
    folder, said = train(config)
    assert "nothing to do" not in said
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["eval/accuracy"] >= 0
    _, said = train(config)
    assert "nothing to do" in said
