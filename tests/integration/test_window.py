"""Steps that take the groups that are finished first (`cluster.window`), in processes, with an interruption."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.errors import CheckpointError
from burnish.trainers.cluster import train_rl
from burnish.trainers.telemetry.journal import Journal

STEPS = 5


@pytest.fixture
def run(tiny_run: Callable[..., RlConfig], tmp_path: Path) -> Callable[..., Path]:
    """Trains in `tmp_path/NAME` and returns the folder."""

    def train(name: str, *, window: int, workers: int = 2, partial: bool = False) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            steps=STEPS,
            max_staleness=1,
            partial=partial,
            evaluation={"every_steps": 2},
            checkpoint={"every_steps": 2},
            cluster={"rollout_workers": workers, "window": window, "lanes": 4, "threads": 1},
        )
        train_rl(config, console=Console(quiet=True))
        return tmp_path / name

    return train


def trained_prompts(folder: Path) -> list[set[str]]:
    """Of each step."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    return [{json.loads(line)["prompt_id"] for line in file.read_text().splitlines()} for file in files]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
def test_every_prompt_is_trained_on_once_by_a_run_that_is_interrupted_too(
    partial: bool, run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in step 3 ends the run after it, while later groups are being sampled."""
    expected = set().union(*trained_prompts(run("exact", window=0, workers=0)))
    write = Journal.write

    def interrupted(journal: Journal, step: int, row: dict[str, float]) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        write(journal, step, row)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "write", interrupted)
        folder = run("window", window=6, partial=partial)
    assert len(metrics(folder)) == 4
    with pytest.raises(CheckpointError, match=r"cluster\.window"):
        run("window", window=5, partial=partial)
    run("window", window=6, partial=partial)
    steps: list[Any] = trained_prompts(folder)
    assert [len(prompts) for prompts in steps] == [4] * STEPS
    assert set().union(*steps) == expected
    rows = [row for row in metrics(folder) if row["step"] > 0]
    assert all(0 <= row["rollout/staleness"] <= 1 + 2 for row in rows)  # 1 + ceil((6 - 1) / 4)
    assert all(0 <= row["rollout/overtaking_fraction"] <= 1 for row in rows)
