"""Whatever ends a run, the steps that it has finished are saved, and the resumed run equals an undisturbed one."""

import io
import itertools
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from runs import BuildRl, BuildSft, Trace, num_rows, rows_of, run_file, trace, train, trained

import burnish.trainers.rl.loop as rl
from burnish.checkpointing.store import CheckpointStore
from burnish.config.schema import RlConfig, SftConfig
from burnish.errors import BurnishError, CheckpointError, DivergenceError, RewardError, RolloutError
from burnish.models.policy import LocalPolicy
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import SftRun, train_sft
from burnish.trainers.telemetry.journal import Journal

pytestmark = pytest.mark.slow


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


def test_a_reward_outage_loses_no_step(commands: Any, tiny_run: BuildRl, tmp_path: Path) -> None:
    flag, run = tmp_path / "down", tmp_path / "stopped"
    (tmp_path / "reward.py").write_text(OUTAGE.format(flag=str(flag)))
    rewards = [{"name": f"{tmp_path}/reward.py:digits", "label": "d"}]
    words = ("rl", run_file(tiny_run(**{**BUSY, "steps": 20}, rewards=rewards)))
    commands.finish(*words, f"output={tmp_path}/calm")
    command = commands.start(*words, f"output={run}")
    assert command.wait_for(lambda: num_rows(run) >= 5)
    flag.touch()
    assert command.wait() == 2, command.output
    assert "the service is down" in command.output
    (saved,) = checkpoints(run)
    assert f"step {int(saved[5:])} is saved; the same command continues from there" in command.output
    assert int(saved[5:]) >= 4
    flag.unlink()
    commands.finish(*words, f"output={run}")
    assert trace(run) == trace(tmp_path / "calm")


@pytest.fixture(scope="module")
def calm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calm") / "run"


@pytest.fixture
def calm(tiny_run: BuildRl, calm_folder: Path) -> Trace:
    """What the undisturbed run leaves behind, which the first test that asks starts."""
    if not calm_folder.exists():
        train(tiny_run(f"output={calm_folder}", **BUSY))
    return trace(calm_folder)


def fail_once(patch: pytest.MonkeyPatch, error: BaseException, owner: Any, name: str, number: int) -> None:
    """The call of this number ends in the error."""
    real, calls = getattr(owner, name), itertools.count(1)

    def called(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            raise error
        return real(*arguments, **named)

    patch.setattr(owner, name, called)


PLACES = {
    "before the update": (rl, "credit_rows", 3),
    "in the evaluation": (rl.RlRun, "evaluate", 2),
    "in the engine's sync": (LocalEngine, "sync", 3),
    "while recording": (Journal, "record", 3),
}
"""In step 3, or in the evaluation after step 2."""


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
    tiny_run: BuildRl, calm: Trace, where: str, error: BaseException, saved: int
) -> None:
    config = tiny_run(**BUSY)
    with pytest.MonkeyPatch.context() as patch:
        fail_once(patch, error, *PLACES[where])
        said = stop_by(type(error) if not isinstance(error, MemoryError) else BaseException, config)
    assert checkpoints(Path(config.output)) == [f"step-{saved:06d}"]
    assert f"step {saved} is saved" in said
    folder, said = train(config)
    assert f"after step {saved}" in said
    found = trace(folder)
    if where == "while recording":  # what was sampled for the step is the one thing that is lost
        calm.rollouts.pop("step-000003.jsonl")
        found.rollouts.pop("step-000003.jsonl", None)
    if where == "in the engine's sync":
        assert "step-000003.jsonl" in found.rollouts
    assert found == calm
    assert not (folder / "checkpoints" / "step-000004" / "pending.json").exists()


def test_in_the_middle_of_the_updates_the_last_checkpoint_stands(tiny_run: BuildRl, calm: Trace) -> None:
    """The second optimizer step of step 3: the weights are those of no step any more."""
    config = tiny_run(**{**BUSY, "checkpoint": {"every_steps": 2}})
    with pytest.MonkeyPatch.context() as patch:
        fail_once(patch, MemoryError(), LocalPolicy, "update", 2 * 4 + 2)
        said = stop_by(BaseException, config)
    assert "step 3 was stopped in the middle of its updates" in said
    assert "nothing is saved, the newest checkpoint is of step 2" in said
    assert checkpoints(Path(config.output)) == ["step-000002"]
    folder = trained(config)
    assert trace(folder) == calm


def test_a_failure_in_the_first_minibatch_leaves_the_weights_of_the_last_step(tiny_run: BuildRl, calm: Trace) -> None:
    config = tiny_run(**BUSY)
    real = LocalPolicy.accumulate

    def accumulate(policy: LocalPolicy, *arguments: Any) -> None:
        real(policy, *arguments)
        if policy.version == 2 * 4:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalPolicy, "accumulate", accumulate)
        said = stop_by(Exception, config)
    assert "step 2 is saved" in said
    folder = trained(config)
    assert trace(folder) == calm


def test_a_save_that_fails_too_does_not_take_the_place_of_the_error(
    tiny_run: BuildRl, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, RewardError("down"), *PLACES["before the update"])
    monkeypatch.setattr(CheckpointStore, "save", Mock(side_effect=CheckpointError("no room")))
    said = stop_by(RewardError, tiny_run(**BUSY))
    assert "step 2 could not be saved either (CheckpointError: no room" in said
    assert "there is no checkpoint" in said


@pytest.mark.parametrize("in_evaluation", [False, True])
def test_supervised_fine_tuning_saves_as_well(tiny_sft: BuildSft, tmp_path: Path, in_evaluation: bool) -> None:
    """In the fifth update, or in the evaluation after step 4."""
    fields = {"checkpoint": {"every_steps": None}, "evaluation": {"every_steps": 4, "at_start": False}}
    with pytest.MonkeyPatch.context() as patch:
        if in_evaluation:
            fail_once(patch, MemoryError(), SftRun, "evaluate", 1)
        else:
            fail_once(patch, DivergenceError("nan"), LocalPolicy, "update", 5)
        said = stop_by(BaseException, tiny_sft(**fields))
    assert "step 4 is saved" in said
    assert (tmp_path / "run" / "checkpoints" / "step-000004" / "pending.json").exists() is in_evaluation
    folder = trained(tiny_sft(**fields))
    calm = trained(tiny_sft(f"output={tmp_path}/calm", **fields))
    assert trace(folder) == trace(calm)


def test_a_run_cut_short_in_its_last_evaluation_is_not_finished(tiny_run: BuildRl) -> None:
    config = tiny_run(**{**BUSY, "evaluation": {"every_steps": 9, "at_start": True, "max_prompts": 5}})
    with pytest.MonkeyPatch.context() as patch:
        fail_once(patch, RewardError("down"), *PLACES["in the evaluation"])
        said = stop_by(BurnishError, config)
    assert "step 4 is saved" in said
    folder, said = train(config)
    assert "nothing to do" not in said
    assert rows_of(folder)[-1]["eval/accuracy"] >= 0
    _, said = train(config)
    assert "nothing to do" in said
