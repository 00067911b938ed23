"""Tiny models learn to use a tool, to play a game and to ask Python, as the examples' own files say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from scripts import load_script

from burnish.config.loading import load_run_file
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import train_sft

pytestmark = pytest.mark.matrix  # run by hand (make test-matrix)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Train = Callable[..., list[dict[str, float]]]


def trainer_of(example: str, folder: Path, *sft_changes: str) -> Train:
    """Run one of the example's files as it stands but for `changes`, and return its rows of metrics; only its folders
    are others. Fine-tunes first, with `sft_changes`."""
    prepare = load_script(EXAMPLES / example / "prepare.py")
    task = folder / "task"
    prepare.write_model(task / "model")
    prepare.write_data(task)

    def train(name: str, *changes: str) -> list[dict[str, float]]:
        file, given = EXAMPLES / example / f"{name}.yaml", [f"output={folder / name}", "logging.sinks=[]", *changes]
        if name == "sft":
            given += [f"model.path={task / 'model'}", f"data.train={task / 'demonstrations.jsonl'}"]
            train_sft(load_run_file(file, given, kind="sft").config, console=Console(quiet=True))
        else:
            given += [f"data.train={task / 'train.jsonl'}", f"data.eval={task / 'heldout.jsonl'}"]
            train_rl(load_run_file(file, [*given, f"model.path={folder / 'sft'}"]).config, console=Console(quiet=True))
        return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]

    train("sft", *sft_changes)
    return train


@pytest.fixture
def calculator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Train:
    monkeypatch.chdir(EXAMPLES.parent)  # run files name their code from the repository's root
    return trainer_of("calculator", tmp_path)


@pytest.fixture
def briefly_taught_calculator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Train:
    """As many steps, each on a third of the demonstrations."""
    monkeypatch.chdir(EXAMPLES.parent)
    return trainer_of("calculator", tmp_path, "optimization.tokens_per_batch=800")


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Train:
    monkeypatch.chdir(EXAMPLES.parent)
    return trainer_of("guess_the_number", tmp_path)


@pytest.fixture
def python_tool(sandbox_holds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Train:
    monkeypatch.chdir(EXAMPLES.parent)
    return trainer_of("python_tool", tmp_path)


def held_out(rows: list[dict[str, float]]) -> list[float]:
    return [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]


def test_asking_a_calculator_is_learned_in_twenty_steps(briefly_taught_calculator: Train) -> None:
    rows = held_out(briefly_taught_calculator("rl", "steps=20"))
    assert rows[-1] >= rows[0] + 0.2


def test_a_calculator_is_asked_for_the_right_product(calculator: Train) -> None:
    rows = calculator("rl")
    assert held_out(rows)[0] <= 0.5
    assert held_out(rows)[-1] >= 0.95
    assert rows[-1]["eval/conversation/called_fraction"] >= 0.95


def test_without_the_calculator_and_with_advantages_that_say_nothing_it_is_not_learned(calculator: Train) -> None:
    without, shuffled = held_out(calculator("without")), held_out(calculator("shuffled"))
    assert without[-1] < 0.3
    assert shuffled[-1] < shuffled[0] + 0.1


def test_a_number_is_found_in_five_guesses(game: Train) -> None:
    rows = held_out(game("rl"))
    assert rows[0] <= 0.65
    assert rows[-1] >= 0.9


def test_without_hints_a_number_is_found_by_luck_alone(game: Train) -> None:
    """Five of sixteen numbers, give or take what 300 games happen to ask."""
    assert held_out(game("blind"))[-1] <= 0.35


def test_python_is_asked_what_was_meant(python_tool: Train) -> None:
    rows = held_out(python_tool("rl"))
    assert rows[0] <= 0.5
    assert rows[-1] >= 0.9
