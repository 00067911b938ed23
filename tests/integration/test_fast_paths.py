"""Runs whose fast paths are chosen by made-up times: a resumed run takes what it began with, and says so."""

import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from runs import BuildRl, BuildSft

from burnish.config.schema import RlConfig
from burnish.forward.fast_paths import FastPaths
from burnish.forward.race import Contender, RaceResult
from burnish.forward.verdicts import VerdictCache
from burnish.trainers.cluster import train_rl
from burnish.trainers.rl.measuring import evaluate_run
from burnish.trainers.run_folder import PATHS_FILE
from burnish.trainers.sft import train_sft

pytestmark = pytest.mark.slow

Fastest = Callable[[int], None]


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> Fastest:
    """Which of the ways wins from now on: 0 for the first, -1 for the plainest."""

    def win(place: int) -> None:
        def run_race(ways: Sequence[Contender]) -> RaceResult:
            return RaceResult(ways[place].name, {way.name: 1.0 if way is ways[place] else 2.0 for way in ways})

        chooses = partial(FastPaths, cache=VerdictCache(None), timed=True, run_race=run_race)
        monkeypatch.setattr("burnish.trainers.run_folder.FastPaths", chooses)

    return win


def said(train: Callable[..., Any], config: Any) -> str:
    output = io.StringIO()
    config = config.model_copy(update={"logging": config.logging.model_copy(update={"verbose": True})})
    train(config, console=Console(file=output, width=1000))
    return output.getvalue()


def weights(config: RlConfig) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (file,) = max((Path(config.output) / "checkpoints").glob("step-*")).glob("policy/*.safetensors")
    return load_file(file)


def test_a_resumed_run_takes_the_paths_that_it_began_with(tiny_run: BuildRl, tmp_path: Path, fastest: Fastest) -> None:
    """Another verdict in between changes no bit."""
    words = ("optimization.learning_rate=1e-2", "checkpoint.every_steps=1")
    whole, parts = (tiny_run(*words, "steps=3", f"output={tmp_path / name}") for name in ("whole", "parts"))
    fastest(-1)
    assert "decoding by the model's own pass" in said(train_rl, whole)
    said(train_rl, parts.model_copy(update={"steps": 2}))
    began = json.loads((tmp_path / "parts" / PATHS_FILE).read_text())
    fastest(0)
    text = said(train_rl, parts)
    assert "decoding by the model's own pass" in text
    assert "as the run began" in text
    assert json.loads((tmp_path / "parts" / PATHS_FILE).read_text()) == began
    expected, found = weights(whole), weights(parts)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.compiler
def test_a_resumed_run_that_cannot_says_so(
    tiny_run: BuildRl, fastest: Fastest, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run("steps=1", "checkpoint.every_steps=1")
    fastest(0)
    said(train_rl, config)

    monkeypatch.setattr(
        "burnish.rollouts.local.kernel_decoder.KernelDecoder.logits",
        Mock(side_effect=RuntimeError("no such instruction")),
    )
    text = said(train_rl, config.model_copy(update={"steps": 2}))
    assert "this run began with decoding by C kernels, and goes on with the model's own pass" in text
    assert text.count("decoding without C kernels: the trial ended with RuntimeError: no such instruction") == 1


def test_sft_and_evaluation_keep_to_the_record_too(
    tiny_sft: BuildSft, tiny_run: BuildRl, tmp_path: Path, fastest: Fastest
) -> None:
    fastest(-1)
    sft = tiny_sft("steps=1", f"output={tmp_path / 'sft'}")
    said(train_sft, sft)
    assert (tmp_path / "sft" / PATHS_FILE).exists()
    rl = tiny_run("steps=1", f"output={tmp_path / 'rl'}")
    said(train_rl, rl)
    before = (tmp_path / "rl" / PATHS_FILE).read_text()
    fastest(0)
    assert "decoding by the model's own pass" in said(evaluate_run, rl)
    assert (tmp_path / "rl" / PATHS_FILE).read_text() == before
