"""A run whose models and engine are in other processes computes what one process computes, bit for bit."""

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import BuildRl, after_step, trace

from burnish.config.schema import RlConfig
from burnish.distributed.fork_server import ForkServer
from burnish.distributed.handles import RemoteCritic, RemotePolicy, RemoteReference
from burnish.distributed.peers import ProcessRole, ProcessSpec, RoleLostError
from burnish.distributed.processes import RoleProcess
from burnish.distributed.server import buckets
from burnish.models.policy import LocalPolicy
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore
from burnish.rollouts.engine import Sampling
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.outer_loop import restore, run_loop
from burnish.trainers.rl.loop import RlRun
from burnish.trainers.rl.setup.parts import open_rl_run
from burnish.trainers.rl.setup.remote_roles import engine_role, trained_roles
from burnish.types import Metric, Rollout, RolloutRequest

pytestmark = pytest.mark.slow

SECONDS = 120.0
OpenRun = Callable[..., AbstractContextManager[RlRun]]

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


class RemoteEngine:
    """A `RolloutEngine` in another process, which computes one portion at a time."""

    def __init__(self, role: ProcessRole) -> None:
        self._role = role
        self._metrics = MetricStore()

    def generate(self, requests: Sequence[RolloutRequest], sampling: Sampling, **call: Any) -> list[Rollout]:
        rollouts, metrics = self._role.generate(list(requests), sampling, seed=call["seed"], step=call["step"])
        self._metrics.merge(metrics)
        return rollouts

    def sync(self, weights: Weights) -> None:
        message = ("sync", self._role.name, weights.version)
        self._role.process.ask(message, what="engine.sync", seconds=SECONDS, giving=buckets(weights.tensors()))

    def take_metrics(self) -> Mapping[str, Metric]:
        store, self._metrics = self._metrics, MetricStore()
        return store.merged()


def move_roles(run: RlRun, trainer: RoleProcess, sampler: RoleProcess) -> None:
    """Let the run ask the two processes instead of the models that it was opened with."""

    def at(process: RoleProcess, name: str) -> Any:
        return process.role(name, seconds=SECONDS)

    run.policy = RemotePolicy(at(trainer, "policy"))
    run.reference = None if run.reference is None else RemoteReference(at(trainer, "reference"))
    run.critic = None if run.critic is None else RemoteCritic(at(trainer, "critic"))
    engine = RemoteEngine(at(sampler, "engine"))
    run.supply.collector = dataclasses.replace(run.supply.collector, engine=engine)
    if run.evaluator is not None:
        run.evaluator = dataclasses.replace(run.evaluator, engine=engine)


@pytest.fixture
def remote(tiny_run: BuildRl, tmp_path: Path, fork_server: ForkServer) -> OpenRun:
    """Opens a run in `tmp_path/remote` whose roles are in two processes."""

    @contextmanager
    def open_run(fields: dict[str, Any], *overrides: str) -> Iterator[RlRun]:
        config = tiny_run(f"output={tmp_path}/remote", *overrides, **fields)
        with ExitStack() as stack:
            run = stack.enter_context(open_rl_run(config, Console(quiet=True)))
            seats = ProcessSpec("trainer", trained_roles, (config,)), ProcessSpec("sampler", engine_role, (config,))
            trainer, sampler = (stack.enter_context(RoleProcess(seat, fork_server=fork_server)) for seat in seats)
            move_roles(run, trainer, sampler)
            if run.progress.saved_step is not None:
                restore(run, run.store.at(run.progress.saved_step))
                run.supply.publish(run.policy.publish(), run.progress.step)
            yield run

    return open_run


def train_here(config: RlConfig) -> None:
    with open_rl_run(config, Console(quiet=True)) as run:
        assert isinstance(run.policy, LocalPolicy)
        run_loop(run, StopRequest())


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(GRPO, id="grpo"),
        pytest.param(PPO, id="ppo"),
        pytest.param(SHARED, id="ppo with a shared backbone", marks=pytest.mark.matrix),
    ],
)
def test_models_and_engine_in_other_processes_change_no_bit(
    fields: dict[str, Any], tiny_run: BuildRl, remote: OpenRun, tmp_path: Path
) -> None:
    train_here(tiny_run(f"output={tmp_path}/local", **fields))
    with remote(fields) as run:
        run_loop(run, StopRequest())
    assert trace(tmp_path / "remote") == trace(tmp_path / "local")


def test_a_lost_process_ends_the_run_which_resumes_to_the_same_bits(
    tiny_run: BuildRl, remote: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the engine's process is killed, after which the last finished step is saved, then that of the policy."""
    train_here(tiny_run(f"output={tmp_path}/local", **GRPO))
    for name, when, saved in (("engine", 3, 3), ("policy", 7, 5)):
        with remote(GRPO) as run:
            role = run.supply.collector.engine._role if name == "engine" else run.policy.role  # type: ignore[attr-defined]
            with monkeypatch.context() as patch:
                after_step(patch, when, partial(os.kill, role.process.pid, signal.SIGKILL))
                with pytest.raises(RoleLostError, match="killed by SIGKILL"):
                    run_loop(run, StopRequest())
        assert max((tmp_path / "remote" / "checkpoints").glob("step-??????")).name == f"step-{saved:06d}"
    with remote(GRPO) as run:
        run_loop(run, StopRequest())
    assert trace(tmp_path / "remote") == trace(tmp_path / "local")
