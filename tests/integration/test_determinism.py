"""The seed decides everything: metrics, rollouts, weights and optimizer state, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from rich.console import Console

from burnish.config.presets import PRESETS
from burnish.config.schema import RlConfig, RunConfig, SftConfig
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import train_sft

Trace = Any
ReadTrace = Callable[[Path], Trace]

BUSY = {
    "optimization": {"learning_rate": 1e-2, "epochs": 2, "minibatches": 3},
    "evaluation": {"every_steps": 2, "samples": 2, "max_prompts": 5},
}


def spoil_global_randomness(seed: int) -> None:
    """What ran before a run must not matter to it."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def rl_trace(config: RlConfig, trace: ReadTrace, spoil: int = 0) -> Trace:
    spoil_global_randomness(spoil)
    return trace(train_rl(config, console=Console(quiet=True)).folder)


def responses(folder: Path) -> list[list[int]]:
    files = sorted(folder.glob("rollouts/step-*.jsonl"))
    return [json.loads(line)["response_tokens"] for path in files for line in path.read_text().splitlines()]


def check_seed_decides(
    tiny_run: Callable[..., RlConfig], trace: ReadTrace, folder: Path, *overrides: str, **fields: Any
) -> None:
    once = rl_trace(tiny_run(f"output={folder}/once", *overrides, **fields), trace, spoil=1)
    again = rl_trace(tiny_run(f"output={folder}/again", *overrides, **fields), trace, spoil=2)
    other = rl_trace(tiny_run(f"output={folder}/other", "seed=1", *overrides, **fields), trace, spoil=1)
    assert once == again
    assert once.metrics != other.metrics
    assert not set(once.rollouts.values()) & set(other.rollouts.values())
    for name in once.state:
        assert once.state[name] != other.state[name] or name.endswith(".json")


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        {"preset": "grpo", "dynamic_sampling": True},
        {"preset": "reinforce_plus_plus", "kl_target": 0.05, "kl_horizon": 100},
    ],
    ids=["grpo with refills", "reinforce_plus_plus with adaptive KL"],
)
def test_the_seed_decides_a_run(
    tiny_run: Callable[..., RlConfig], trace: ReadTrace, tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    check_seed_decides(tiny_run, trace, tmp_path, algorithm=algorithm, **BUSY)


@pytest.mark.slow
@pytest.mark.matrix_cases("cispo", "gspo", "gmpo", "kl_cov")  # which differ from grpo by pure functions
@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_seed_decides_a_run_of_every_preset(
    tiny_run: Callable[..., RlConfig],
    for_the_task: Callable[[str], tuple[str, ...]],
    trace: ReadTrace,
    tmp_path: Path,
    preset: str,
) -> None:
    check_seed_decides(tiny_run, trace, tmp_path, *for_the_task(preset), algorithm=preset, **BUSY)


@pytest.mark.slow
def test_the_seed_decides_supervised_fine_tuning(
    tiny_sft: Callable[..., SftConfig], trace: ReadTrace, tmp_path: Path
) -> None:
    def run(name: str, seed: int, spoil: int) -> Trace:
        spoil_global_randomness(spoil)
        config = tiny_sft(f"output={tmp_path}/{name}", f"seed={seed}")
        return trace(train_sft(config, console=Console(quiet=True)).folder)

    once, again, other = run("once", 0, 1), run("again", 0, 2), run("other", 1, 1)
    assert once == again
    assert once.metrics != other.metrics
    assert once.state != other.state


@pytest.mark.slow
def test_the_command_line_gives_the_same_run_as_the_library(
    tiny_run: Callable[..., RlConfig],
    trace: ReadTrace,
    tmp_path: Path,
    commands: Any,
    run_file: Callable[[RunConfig], str],
) -> None:
    """In another process: also nothing depends on the order of sets, which differs between processes."""
    command = commands.run("rl", run_file(tiny_run(**BUSY)), f"output={tmp_path}/there", "--debug")
    assert command.code == 0, command.output
    assert "finished at step 3" in command.output
    here = rl_trace(tiny_run(f"output={tmp_path}/here", **BUSY), trace)
    assert trace(tmp_path / "there") == here


@pytest.mark.slow
def test_samples_depend_neither_on_workers_nor_on_rows_side_by_side(
    tiny_run: Callable[..., RlConfig], tmp_path: Path
) -> None:
    """Rounding may differ with the shape of a batch, the sampled tokens do not."""
    for name, overrides in (("wide", ()), ("narrow", ("rollout.max_batch_rows=3", "scoring.workers=2"))):
        train_rl(tiny_run(f"output={tmp_path}/{name}", *overrides, **BUSY), console=Console(quiet=True))
    assert responses(tmp_path / "wide") == responses(tmp_path / "narrow")
