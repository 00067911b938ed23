"""Steps that take the groups that are finished first (`cluster.window`), in processes, with an interruption."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.domains import domain_settings
from burnish.config.schema import RlConfig
from burnish.data.feeds import SampledPrompts
from burnish.errors import CheckpointError
from burnish.models.tokenizers import load_tokenizer
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.feeds import load_prompt_set
from burnish.trainers.telemetry.journal import Journal

STEPS = 5


@pytest.fixture
def build(tiny_run: Callable[..., RlConfig], tmp_path: Path) -> Callable[..., RlConfig]:
    """The run file of a run in `tmp_path/NAME`."""

    def configure(name: str, *, window: int, workers: int = 2, **fields: Any) -> RlConfig:
        return tiny_run(
            f"output={tmp_path}/{name}",
            **{"steps": STEPS, "algorithm": "grpo", **fields},
            max_staleness=1,
            evaluation={"every_steps": 2},
            checkpoint={"every_steps": 2},
            cluster={"rollout_workers": workers, "window": window, "lanes": 4, "threads": 1},
        )

    return configure


@pytest.fixture
def run(build: Callable[..., RlConfig], tmp_path: Path) -> Callable[..., Path]:
    """Trains in `tmp_path/NAME` and returns the folder."""

    def train(name: str, **settings: Any) -> Path:
        train_rl(build(name, **settings), console=Console(quiet=True))
        return tmp_path / name

    return train


def trained_prompts(folder: Path) -> list[set[str]]:
    """Of each step."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    return [{json.loads(line)["prompt_id"] for line in file.read_text().splitlines()} for file in files]


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, pytest.param(True, marks=pytest.mark.matrix)])
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


def sampled_prompts(folder: Path) -> list[Counter[str]]:
    """Of each step: how many groups were sampled for each prompt."""
    found = []
    for file in sorted((folder / "rollouts").glob("step-*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found.append(Counter(prompt for _, prompt in {(row["group_id"], row["prompt_id"]) for row in rows}))
    return found


def first_prompts(config: RlConfig, count: int) -> Counter[str]:
    """How often each prompt is among the first ones of the data, as the run draws them."""
    (domain,) = domain_settings(config)
    train = load_prompt_set(config, domain, load_tokenizer(config.model), None, "train")
    feed = SampledPrompts(train, train.sampler(seed=config.seed, shuffle=config.data.shuffle))
    return Counter(encoded.prompt.id for encoded in feed.take(count, 0))


def check_dynamic_sampling(config: RlConfig, steps: int) -> None:
    """Every prompt that was drawn was sampled for exactly one step, and nothing constant was trained on."""
    folder = Path(config.output)
    newest = max((folder / "checkpoints").glob("step-??????"))
    drawn = json.loads((newest / "training_state.json").read_text())["position"]
    rows = [row for row in metrics(folder) if row["step"] > 0]
    sampled = sampled_prompts(folder)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert sum(sampled, Counter()) == first_prompts(config, drawn)
    assert [prompts.total() for prompts in sampled] == [row["groups/sampled"] for row in rows]
    assert drawn > 4 * steps, "no group was replaced, so this has shown nothing"
    for step, row in enumerate(rows, start=1):
        kept = set()
        for line in (folder / "rollouts" / f"step-{step:06d}.jsonl").read_text().splitlines():
            rollout = json.loads(line)
            kept |= {rollout["group_id"]} if rollout["kept"] else set()
        assert len(kept) == 4 - row["groups/missing"]
        assert row["groups/constant_fraction"] == pytest.approx(1 - len(kept) / row["groups/sampled"])
        assert 0 <= row["rollout/staleness"] <= 1 + 2


DAPO: dict[str, Any] = {"window": 6, "algorithm": {"preset": "dapo", "max_refills": 2}}


@pytest.mark.slow
@pytest.mark.parametrize("partial", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_replaced_groups_cost_no_prompt_though_ctrl_c_ends_the_run_in_between(
    partial: bool, build: Callable[..., RlConfig], run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Journal.write

    def interrupted(journal: Journal, step: int, row: dict[str, float]) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        write(journal, step, row)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "write", interrupted)
        run("dapo", **DAPO, partial=partial)
    run("dapo", **DAPO, partial=partial)
    check_dynamic_sampling(build("dapo", **DAPO, partial=partial), STEPS)


@pytest.mark.slow
def test_replaced_groups_cost_no_prompt_though_the_run_is_killed_in_between(
    build: Callable[..., RlConfig], commands: Any, run_file: Callable[[RlConfig], str]
) -> None:
    """Twice, wherever it is then: steps after the newest checkpoint are made again, with the prompts of the first
    time or others, and what they left behind is removed."""
    config = build("killed", **DAPO, steps=8)
    words, journal = ("rl", run_file(config)), Path(config.output) / "metrics.jsonl"

    def lines() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    for count in (4, 6):
        command = commands.start(*words)
        assert command.wait_for(lambda count=count: lines() >= count), command.output
        command.kill()
    command = commands.run(*words)
    assert command.code == 0, command.output
    check_dynamic_sampling(config, 8)
