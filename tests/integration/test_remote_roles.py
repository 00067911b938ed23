"""A run whose models and engine are in other processes computes what one process computes, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.distributed.handles import RemoteCritic, RemoteEngine, RemotePolicy, RemoteReference
from burnish.distributed.processes import RoleProcess
from burnish.models.policy import LocalPolicy
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.outer_loop import run_loop
from burnish.trainers.rl.elsewhere import engine_role, trained_roles
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup import open_rl_run

SECONDS = 120.0

GRPO: dict[str, Any] = {
    "algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05},
    "optimization": {"minibatches": 2, "epochs": 2, "learning_rate": 1e-3, "tokens_per_microbatch": 40},
    "steps": 10,
    "checkpoint": {"every_steps": 5},
}
PPO: dict[str, Any] = {
    "algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05},
    "critic": {"kind": "separate", "learning_rate": 1e-3, "warmup_steps": 1},
    "optimization": {"minibatches": 2, "learning_rate": 1e-3},
    "steps": 3,
}
SHARED: dict[str, Any] = {**PPO, "critic": {"kind": "shared", "learning_rate": 1e-3}}


def move_roles(run: RlRun, trainer: RoleProcess, sampler: RoleProcess) -> None:
    """Let the run ask the two processes instead of the models that it was opened with."""

    def at(process: RoleProcess, name: str) -> Any:
        return process.role(name, seconds=SECONDS)

    run.policy = RemotePolicy(at(trainer, "policy"))
    run.reference = None if run.reference is None else RemoteReference(at(trainer, "reference"))
    run.critic = None if run.critic is None else RemoteCritic(at(trainer, "critic"))
    run.engine = RemoteEngine(at(sampler, "engine"))
    run.collector = dataclasses.replace(run.collector, engine=run.engine)
    if run.evaluator is not None:
        run.evaluator = dataclasses.replace(run.evaluator, engine=run.engine)


@pytest.fixture
def remote(tiny_run: Callable[..., RlConfig], tmp_path: Path) -> Iterator[Callable[..., RlRun]]:
    """Opens a run in `tmp_path/remote` whose roles are in two processes."""
    with ExitStack() as stack:

        def open_run(fields: dict[str, Any], *overrides: str) -> RlRun:
            config = tiny_run(f"output={tmp_path}/remote", *overrides, **fields)
            run = stack.enter_context(open_rl_run(config, Console(quiet=True)))
            trainer = stack.enter_context(RoleProcess("trainer", trained_roles, config))
            sampler = stack.enter_context(RoleProcess("sampler", engine_role, config))
            move_roles(run, trainer, sampler)
            return run

        yield open_run


@pytest.mark.parametrize("fields", [GRPO, PPO, SHARED], ids=["grpo", "ppo", "ppo with a shared trunk"])
def test_models_and_engine_in_other_processes_change_no_bit(
    fields: dict[str, Any],
    tiny_run: Callable[..., RlConfig],
    remote: Callable[..., RlRun],
    trace: Callable[[Path], Any],
    tmp_path: Path,
) -> None:
    with open_rl_run(tiny_run(f"output={tmp_path}/local", **fields), Console(quiet=True)) as run:
        assert isinstance(run.policy, LocalPolicy)
        run_loop(run, StopRequest())
    run_loop(remote(fields), StopRequest())
    assert trace(tmp_path / "remote") == trace(tmp_path / "local")
