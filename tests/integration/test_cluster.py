"""A run on several processes has the numbers of the same run on one, to the last bit, whatever happens to a process."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.distributed import processes
from burnish.distributed.processes import RoleProcess
from burnish.errors import ConfigError
from burnish.trainers.cluster import train_rl
from burnish.trainers.telemetry.journal import Journal

WRITE = Journal.write

CASES: dict[str, dict[str, Any]] = {
    "grpo": {
        "algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05},
        "optimization": {"minibatches": 2, "epochs": 2, "learning_rate": 1e-3},
    },
    "dapo": {"algorithm": {"preset": "dapo"}, "optimization": {"minibatches": 2, "learning_rate": 1e-3}},
    "ppo": {
        "algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05},
        "critic": {"kind": "separate", "learning_rate": 1e-3, "warmup_steps": 1},
        "optimization": {"minibatches": 2, "learning_rate": 1e-3},
    },
    "ppo shared": {
        "algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05},
        "critic": {"kind": "shared", "learning_rate": 1e-3},
        "optimization": {"minibatches": 2, "learning_rate": 1e-3},
    },
    "remax": {"algorithm": {"preset": "remax"}, "optimization": {"learning_rate": 1e-3}},
    "lora": {
        "algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05},
        "lora": True,
        "optimization": {"learning_rate": 1e-3},
    },
    "bfloat16": {"dtype": "bfloat16", "optimization": {"learning_rate": 1e-3}},
}


@pytest.fixture
def run(tiny_run: Callable[..., RlConfig], tmp_path: Path) -> Callable[..., Path]:
    """Trains in `tmp_path/NAME` with four lanes and returns the folder."""

    def train(name: str, case: str, *overrides: str, trainers: int = 1, workers: int = 0, steps: int = 4) -> Path:
        fields = dict(CASES[case])
        if fields.pop("lora", False):
            overrides = (*overrides, "model.lora.rank=4")
        if "dtype" in fields:
            overrides = (*overrides, f"model.dtype={fields.pop('dtype')}")
        config = tiny_run(
            f"output={tmp_path}/{name}",
            *overrides,
            steps=steps,
            checkpoint={"every_steps": 2},
            cluster={"lanes": 4, "trainers": trainers, "rollout_workers": workers, "threads": 1},
            **fields,
        )
        train_rl(config, console=Console(quiet=True))
        return tmp_path / name

    return train


def test_a_system_without_shared_memory_is_named(run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(ConfigError, match="several processes, which share memory in a way that Darwin does not have"):
        run("refused", "grpo", trainers=2)


def test_two_trainers_are_one(run: Callable[..., Path], trace: Callable[[Path], Any]) -> None:
    assert trace(run("two", "grpo", trainers=2)) == trace(run("one", "grpo"))


@pytest.mark.slow
def test_a_lost_rollout_worker_changes_nothing(
    run: Callable[..., Path], trace: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens and log-probabilities with two workers, one of which is killed while it samples."""
    killed: list[int] = []
    generate = processes.ProcessRole.generate

    def killing(role: Any, *arguments: Any, **named: Any) -> Any:
        if named["step"] == 2 and not killed:
            killed.append(role.process.pid)
            threading.Timer(0.01, os.kill, (role.process.pid, signal.SIGKILL)).start()
        return generate(role, *arguments, **named)

    expected = trace(run("one", "grpo"))
    monkeypatch.setattr(processes.ProcessRole, "generate", killing)
    found = trace(run("killed", "grpo", workers=2))
    assert killed
    for row in found.metrics:
        row.pop("rollout/lost_workers", None)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_no_number_of_trainers_changes_a_bit(case: str, run: Callable[..., Path], trace: Callable[[Path], Any]) -> None:
    expected = trace(run("one", case))
    for trainers in (2, 4) if case in ("grpo", "ppo") else (2,):
        assert trace(run(f"trainers-{trainers}", case, trainers=trainers)) == expected, trainers


@pytest.mark.slow
@pytest.mark.parametrize(("trainers", "workers"), [(1, 1), (1, 3), (2, 2)])
def test_no_number_of_rollout_workers_changes_a_bit(
    trainers: int, workers: int, run: Callable[..., Path], trace: Callable[[Path], Any]
) -> None:
    assert trace(run("several", "grpo", trainers=trainers, workers=workers)) == trace(run("one", "grpo"))


@pytest.mark.slow
@pytest.mark.parametrize("trainers", [1, 4])
def test_a_run_continues_on_another_number_of_trainers(
    trainers: int, run: Callable[..., Path], trace: Callable[[Path], Any]
) -> None:
    expected = trace(run("two", "grpo", trainers=2, steps=6))
    run("changed", "grpo", trainers=2, steps=3)
    assert trace(run("changed", "grpo", trainers=trainers, steps=6)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_trainer_costs_time_only(
    number: signal.Signals, run: Callable[..., Path], trace: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two trainers is killed, or stopped, in step 4; all start again from the checkpoint of step 2."""
    started: list[RoleProcess] = []
    begin = RoleProcess.__init__

    def noting(process: RoleProcess, *arguments: Any, **named: Any) -> None:
        begin(process, *arguments, **named)
        started.append(process)

    def hitting(journal: Journal, step: int, row: dict[str, float]) -> None:
        WRITE(journal, step, row)
        if step == 3 and len(started) == 2:
            os.kill(started[1].pid, number)

    expected = trace(run("one", "grpo", steps=6))
    monkeypatch.setattr(RoleProcess, "__init__", noting)
    monkeypatch.setattr(Journal, "write", hitting)
    begun = time.monotonic()
    assert trace(run("hit", "grpo", trainers=2, steps=6)) == expected
    assert len(started) == 4, f"trainers were not started again ({time.monotonic() - begun:.0f} s)"
