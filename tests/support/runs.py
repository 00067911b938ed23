"""Runs in this process: what they say and leave, and one that is interrupted."""

import hashlib
import io
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.checkpointing.run import dump_config
from burnish.config.kinds import find_kind, load
from burnish.config.schema import RlConfig, SftConfig
from burnish.config.schema_run import RunConfig
from burnish.trainers.telemetry.journal import Journal

BuildRl = Callable[..., RlConfig]
BuildSft = Callable[..., SftConfig]
BuildPairs = Callable[..., RunConfig]
"""What the fixtures `tiny_run`, `tiny_sft` and `tiny_pairs` are."""
Run = Callable[..., Path]
"""What trains in a folder of this name, and returns the folder."""

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


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(folder: Path | str) -> list[dict[str, float]]:
    return lines_of(Path(folder) / "metrics.jsonl")


def trained_rows(config: RunConfig) -> list[dict[str, float]]:
    """The metrics of a run, step by step."""
    return rows_of(trained(config))


def step_rows(folder: Path | str) -> list[dict[str, float]]:
    """Without the evaluation before the first step."""
    return [row for row in rows_of(folder) if row["step"] > 0]


def rollouts_of(folder: Path | str, step: int = 1) -> list[dict[str, Any]]:
    """The responses that are recorded of a step."""
    return lines_of(Path(folder) / "rollouts" / f"step-{step:06d}.jsonl")


def untimed_rows(folder: Path | str) -> list[dict[str, float]]:
    """The rows of a run without what a clock says."""
    clocks = ("time/", "throughput/")
    return [{name: value for name, value in row.items() if not name.startswith(clocks)} for row in rows_of(folder)]


@dataclass(frozen=True)
class Trace:
    """All that a run leaves behind and that must not depend on time, place or interruptions."""

    metrics: list[dict[str, float]]
    rollouts: dict[str, str]
    """Every rollout file without the times of turns, as a hash."""
    state: dict[str, str]
    """Weights, optimizer, controllers and positions in the newest checkpoint, as hashes of their files."""


def trace(folder: Path) -> Trace:
    """What a run left behind, to be compared with `==`."""
    newest = max((folder / "checkpoints").glob("step-??????"))
    kept = [*newest.rglob("*.safetensors"), newest / "training_state.json"]
    return Trace(
        untimed_rows(folder),
        {path.name: _hash(path) for path in sorted(folder.glob("rollouts/*"))},
        {str(path.relative_to(folder)): _hash(path) for path in sorted(kept)},
    )


def _hash(path: Path) -> str:
    return hashlib.sha256(re.sub(rb'"turn_seconds": \[(\[[^]]*\](, )?)*\], ', b"", path.read_bytes())).hexdigest()


def run_file(config: RunConfig) -> str:
    """A configuration, written down for the command line beside its output."""
    path = Path(config.output).parent / "run.yaml"
    path.write_text(dump_config(config))
    return str(path)


FITTED = {
    # Digits have no full stop, and the task's responses no sixteen tokens.
    "oai_2019": ("scoring.truncate_token='3'", "scoring.truncate_after=1"),
    # Its critic begins as the reward model, of which the task has none.
    "tldr_2020": ("critic.init=policy",),
    "online_dpo": ("optimization.epochs=1", "optimization.minibatches=1"),
    # The first weights are no teacher until rewards have moved the policy.
    "opd": ("teacher=policy", "algorithm.estimator_options.reward_coef=1"),
}


def fitted(preset: str) -> tuple[str, ...]:
    """Overrides that let a preset run on the tiny task."""
    return FITTED.get(preset, ())


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
    write_lines(path, rows)


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


def after_step(patch: pytest.MonkeyPatch, number: int, act: Callable[[], Any]) -> None:
    """Act once, as soon as the row of this step has been written."""
    write, waiting = Journal.write, [act]

    def acting(journal: Journal, step: int, row: dict[str, float]) -> None:
        write(journal, step, row)
        if step == number and waiting:
            waiting.pop()()

    patch.setattr(Journal, "write", acting)
