"""Tiny models learn to use a tool, to play a game and to ask Python, as the examples' own files say."""

from collections.abc import Callable
from pathlib import Path

import pytest
from runs import trained_rows
from scripts import load_script

from burnish.config.loading import load_run_file

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
            return trained_rows(load_run_file(file, given, kind="sft").config)
        given += [f"data.train={task / 'train.jsonl'}", f"data.eval={task / 'heldout.jsonl'}"]
        return trained_rows(load_run_file(file, [*given, f"model.path={folder / 'sft'}"]).config)

    train("sft", *sft_changes)
    return train


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Callable[..., Train]:
    monkeypatch.chdir(EXAMPLES.parent)  # run files name their code from the repository's root
    return lambda name, *sft_changes: trainer_of(name, tmp_path, *sft_changes)


def held_out(rows: list[dict[str, float]]) -> list[float]:
    return [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]


def test_asking_a_calculator_is_learned_in_twenty_steps(example: Callable[..., Train]) -> None:
    """After as many steps of fine-tuning as usual, each on a third of the demonstrations."""
    train = example("calculator", "optimization.tokens_per_batch=800")
    rows = held_out(train("rl", "steps=20"))
    assert rows[-1] >= rows[0] + 0.2


def test_a_calculator_is_asked_for_the_right_product(example: Callable[..., Train]) -> None:
    rows = example("calculator")("rl")
    assert held_out(rows)[0] <= 0.5
    assert held_out(rows)[-1] >= 0.95
    assert rows[-1]["eval/conversation/called_fraction"] >= 0.95


def test_without_the_calculator_and_with_advantages_that_say_nothing_it_is_not_learned(
    example: Callable[..., Train],
) -> None:
    train = example("calculator")
    without, shuffled = held_out(train("without")), held_out(train("shuffled"))
    assert without[-1] < 0.3
    assert shuffled[-1] < shuffled[0] + 0.1


def test_a_number_is_found_in_five_guesses(example: Callable[..., Train]) -> None:
    rows = held_out(example("guess_the_number")("rl"))
    assert rows[0] <= 0.65
    assert rows[-1] >= 0.9


def test_without_hints_a_number_is_found_by_luck_alone(example: Callable[..., Train]) -> None:
    """Five of sixteen numbers, give or take what 300 games happen to ask."""
    assert held_out(example("guess_the_number")("blind"))[-1] <= 0.35


def test_python_is_asked_what_was_meant(sandbox_holds: None, example: Callable[..., Train]) -> None:
    rows = held_out(example("python_tool")("rl"))
    assert rows[0] <= 0.5
    assert rows[-1] >= 0.9
