"""The seed decides everything: metrics, rollouts, weights and optimizer state, bit for bit."""

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from runs import BuildRl, BuildSft, fitted, lines_of, run_file, trace, trained

from burnish.config.presets import PRESETS

pytestmark = pytest.mark.slow_cases("*")

BUSY = {
    "optimization": {"learning_rate": 1e-2, "epochs": 2, "minibatches": 3},
    "evaluation": {"every_steps": 2, "samples": 2, "max_prompts": 5},
}


def responses(folder: Path) -> list[list[int]]:
    files = sorted(folder.glob("rollouts/step-*.jsonl"))
    return [line["response_tokens"] for path in files for line in lines_of(path)]


def check_seed_decides(build: BuildRl | BuildSft, folder: Path, *overrides: str, **fields: Any) -> None:
    """And not what ran before the run."""
    traces = []
    for before, (name, seed) in enumerate((("once", 0), ("again", 0), ("other", 1))):
        random.seed(before)
        numpy.random.seed(before)
        torch.manual_seed(before)
        traces.append(trace(trained(build(f"output={folder}/{name}", f"seed={seed}", *overrides, **fields))))
    once, again, other = traces
    assert once == again
    assert once.metrics != other.metrics
    assert not set(once.rollouts.values()) & set(other.rollouts.values())
    for name in once.state:
        assert once.state[name] != other.state[name] or name.endswith(".json")


@pytest.mark.parametrize(
    "algorithm",
    [
        {"preset": "grpo", "dynamic_sampling": True},
        {"preset": "reinforce_plus_plus", "kl_target": 0.05, "kl_horizon": 100},
    ],
    ids=["grpo with refills", "reinforce_plus_plus with adaptive KL"],
)
def test_the_seed_decides_a_run(tiny_run: BuildRl, tmp_path: Path, algorithm: dict[str, Any]) -> None:
    check_seed_decides(tiny_run, tmp_path, algorithm=algorithm, **BUSY)


@pytest.mark.matrix_cases("cispo", "gspo", "gmpo", "kl_cov")  # which differ from grpo by pure functions
@pytest.mark.parametrize("preset", list(PRESETS))
def test_the_seed_decides_a_run_of_every_preset(tiny_run: BuildRl, tmp_path: Path, preset: str) -> None:
    check_seed_decides(tiny_run, tmp_path, *fitted(preset), algorithm=preset, **BUSY)


def test_the_seed_decides_supervised_fine_tuning(tiny_sft: BuildSft, tmp_path: Path) -> None:
    check_seed_decides(tiny_sft, tmp_path)


def test_the_command_line_gives_the_same_run_as_the_library(tiny_run: BuildRl, tmp_path: Path, commands: Any) -> None:
    """In another process: also nothing depends on the order of sets, which differs between processes."""
    command = commands.finish("rl", run_file(tiny_run(**BUSY)), f"output={tmp_path}/there", "--debug")
    assert "finished at step 3" in command.output
    assert trace(tmp_path / "there") == trace(trained(tiny_run(f"output={tmp_path}/here", **BUSY)))


def test_samples_depend_neither_on_workers_nor_on_rows_side_by_side(tiny_run: BuildRl, tmp_path: Path) -> None:
    """Rounding may differ with the shape of a batch, the sampled tokens do not."""
    for name, overrides in (("wide", ()), ("narrow", ("rollout.max_batch_rows=3", "scoring.workers=2"))):
        trained(tiny_run(f"output={tmp_path}/{name}", *overrides, **BUSY))
    assert responses(tmp_path / "wide") == responses(tmp_path / "narrow")
