"""Reward models with a process of their own (`cluster.own_process: reward_model`) give the scores of the inline run."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, Run, after_step, trace, trained

from burnish.config.schema_data import ModelConfig
from burnish.distributed.processes import RoleProcess
from burnish.models.reward_model import Readout, new_reward_model

pytestmark = pytest.mark.slow

OWN = "cluster.own_process=reward_model"


@pytest.fixture
def run(tiny_run: BuildRl, tiny_model: Path, tiny_task: Path, tmp_path: Path) -> Run:
    """Trains with GRPO on two reward models, which know nothing, and a function, in `tmp_path/NAME`; returns it."""
    folders = [tmp_path / f"rm-{seed}" for seed in (1, 2)]
    for seed, folder in enumerate(folders, 1):
        new_reward_model(ModelConfig(path=str(tiny_model), device="cpu"), Readout(), seed=seed).save(folder)
    learned = [
        {"name": f"model:{folder}", "label": label, "options": {"device": "cpu"}}
        for folder, label in zip(folders, ("first", "second"), strict=True)
    ]
    digits = {"name": f"{tiny_task / 'reward.py'}:digits", "label": "digits"}

    def train(name: str, *overrides: str, steps: int = 4, **cluster: Any) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            *overrides,
            steps=steps,
            rewards=[learned[0], digits, learned[1]],
            evaluation={"every_steps": 2, "at_start": True},
            checkpoint={"every_steps": 2},
            logging={"sinks": [], "record_rollouts": True},
            cluster={"lanes": 2, "threads": 1, **cluster},
        )
        return trained(config)

    return train


@pytest.mark.matrix_cases("*-0")
@pytest.mark.parametrize(("workers", "staleness"), [(0, 0), (1, 0), (1, 1)])
def test_their_scores_are_those_of_the_inline_run(
    workers: int, staleness: int, run: Run, started: list[RoleProcess]
) -> None:
    """Metrics, evaluations, rollouts with each score, weights. Going on in one process changes nothing either."""
    ahead = f"max_staleness={staleness}"
    found = trace(run("own", ahead, OWN, rollout_workers=workers))
    assert [process.name for process in started].count("reward model") == 1
    expected = trace(run("one", ahead))
    assert found == expected
    assert expected.rollouts
    assert {"reward/part/first", "reward/part/second"} <= expected.metrics[-1].keys()
    assert trace(run("own", ahead, steps=6)) == trace(run("one", ahead, steps=6))


@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_a_lost_process_costs_time_only(
    staleness: int, run: Run, started: list[RoleProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed after step 1 and started again; no other process is."""

    def hit() -> None:
        (judge,) = (process for process in started if process.name == "reward model")
        os.kill(judge.pid, signal.SIGKILL)

    ahead = f"max_staleness={staleness}"
    expected = trace(run("one", ahead))
    after_step(monkeypatch, 1, hit)
    assert trace(run("hit", ahead, OWN, rollout_workers=1)) == expected
    names = [process.name for process in started]
    assert (names.count("reward model"), names.count("rollout worker 0")) == (2, 1)
