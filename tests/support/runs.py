"""Runs in this process: what they say and leave, and one that is interrupted."""

from __future__ import annotations

import io
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.kinds import find_kind, load
from burnish.config.schema_run import RunConfig
from burnish.trainers.telemetry.journal import Journal

SLOW_REWARD = """
import time
def digits(response: str, answer: str) -> float:
    time.sleep(0.01)
    return sum(a == b for a, b in zip(response, answer)) / 2
"""
"""For runs that a test disturbs."""


def train(config: RunConfig, *, accept_changes: bool = False) -> tuple[Path, str]:
    """The folder of the run, and what it said."""
    said = io.StringIO()
    console = Console(file=said, width=200)
    result = load(find_kind(config.kind).train)(config, console=console, accept_changes=accept_changes)
    return result.folder, " ".join(said.getvalue().split())


def trained(config: RunConfig) -> Path:
    """The folder of the run, which has said nothing."""
    return train(config)[0]


def num_rows(folder: Path) -> int:
    """Rows of metrics that are written so far."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows_of(folder: Path | str) -> list[dict[str, float]]:
    return lines_of(Path(folder) / "metrics.jsonl")


def rollouts_of(folder: Path | str, step: int = 1) -> list[dict[str, Any]]:
    """The responses that are recorded of a step."""
    return lines_of(Path(folder) / "rollouts" / f"step-{step:06d}.jsonl")


def untimed_rows(folder: Path | str) -> list[dict[str, float]]:
    """The rows of a run without what a clock says."""
    clocks = ("time/", "throughput/")
    return [{name: value for name, value in row.items() if not name.startswith(clocks)} for row in rows_of(folder)]


def write_pairs(path: Path, count: int, seed: int, *, weighted: bool = False) -> None:
    """Comparisons in which the response with more `a` is better; lengths do not tell."""
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        first, second = ("".join(draw.choices("abcdefgh", k=draw.randint(3, 9))) for _ in range(2))
        if first.count("a") == second.count("a"):
            continue
        better, worse = sorted((first, second), key=lambda text: -text.count("a"))
        prompt = "".join(draw.choices("bcdefgh", k=4)) + "?"
        rows.append({"prompt": prompt, "chosen": better, "rejected": worse})
        if weighted:
            rows[-1]["weight"] = 1 + draw.random()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def preference_run(model: Path, folder: Path, pairs: int, *, weighted: bool = False) -> dict[str, Any]:
    """The settings that `burnish rm` and `burnish prefer` share, of a run over `write_pairs` in this folder."""
    write_pairs(folder / "train.jsonl", pairs, seed=0, weighted=weighted)
    write_pairs(folder / "eval.jsonl", 64, seed=1, weighted=weighted)
    return {
        "output": str(folder / "run"),
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl")},
        "max_tokens": 24,
        "evaluation": {"every_steps": 3},
        "checkpoint": {"every_steps": 2},
        "logging": {"sinks": []},
    }


@contextmanager
def ctrl_c_in_step(number: int) -> Iterator[None]:
    """The run gets it before it writes the row of this step."""
    write = Journal.write

    def interrupted(journal: Journal, step: int, row: dict[str, float]) -> None:
        if step == number:
            os.kill(os.getpid(), signal.SIGINT)
        write(journal, step, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "write", interrupted)
        yield
