"""The demo's task and its words; the trainings themselves are in tests/integration/test_demo.py."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from runs import lines_of

from burnish.checkpointing.lock import RunLock
from burnish.cli.demo import make_room
from burnish.cli.demo_result import Attempt, chosen, counts, show_attempts
from burnish.config.loading import load_run_file
from burnish.demo import (
    FORGET_PROBABILITY,
    NUM_HELD_OUT,
    Addition,
    DemoFolder,
    demonstrate,
    split_problems,
    write_data,
    write_model,
    write_run_files,
)
from burnish.errors import CheckpointError, ConfigError
from burnish.machine.matmul_precision import num_threads

from .conftest import Run


@pytest.mark.parametrize(
    ("a", "b", "prompt", "answer", "without_carry"),
    [
        (47, 85, "47+85=", "231", "221"),  # 132; 7 + 5 leaves 2, the forgotten 1 makes 12 of 13
        (99, 99, "99+99=", "891", "881"),  # 198 becomes 188
        (55, 45, "55+45=", "001", "090"),  # 100 becomes 90
        (12, 34, "12+34=", "640", "640"),  # nothing to carry
        (3, 6, "03+06=", "900", "900"),
    ],
)
def test_a_problem_its_answer_and_the_forgetful_one(
    a: int, b: int, prompt: str, answer: str, without_carry: str
) -> None:
    problem = Addition(a, b)
    assert (problem.prompt, problem.answer, problem.without_carry) == (prompt, answer, without_carry)


@pytest.mark.slow
def test_training_and_held_out_problems_share_nothing_and_are_all_there_is() -> None:
    train, held_out = split_problems(3)
    assert (len(train), len(held_out)) == (10_000 - NUM_HELD_OUT, NUM_HELD_OUT)
    assert len({(p.a, p.b) for p in [*train, *held_out]}) == 10_000
    assert split_problems(3) == (train, held_out)
    assert split_problems(4)[1] != held_out


def test_the_demonstrator_errs_only_where_there_is_a_carry_and_as_often_as_stated() -> None:
    problems = [Addition(a, b) for a in range(100) for b in range(100)]
    shown = demonstrate(problems, 0)
    carrying = [(p, text) for p, text in zip(problems, shown, strict=True) if p.a % 10 + p.b % 10 > 9]
    assert len(carrying) == 4500
    wrong = sum(text != p.answer for p, text in carrying)
    assert wrong == sum(text != p.answer for p, text in zip(problems, shown, strict=True))
    assert wrong / 4500 == pytest.approx(FORGET_PROBABILITY, abs=0.03)  # 5 standard deviations


@pytest.mark.slow
def test_the_run_files_read_back_what_was_written(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "a folder: with #odd 'signs'")
    wrong = write_data(folder, 0)
    write_run_files(folder, 5)
    sft = load_run_file(folder.sft_file, (), "sft").config
    rl = load_run_file(folder.rl_file, (), "rl").config
    assert (sft.seed, rl.seed, sft.output, rl.output) == (5, 5, str(folder.sft_run), str(folder.rl_run))
    assert rl.model.path.startswith(str(folder.sft_run))
    assert rl.model.path.endswith(f"step-{sft.steps:06d}/policy")
    assert rl.algorithm.kl_in == "none"
    train, held_out = lines_of(folder.train), lines_of(folder.held_out)
    assert train[0].keys() == held_out[0].keys() == {"prompt", "answer"}
    demonstrations = lines_of(folder.demonstrations)
    assert [row["prompt"] for row in demonstrations[::4]] == [row["prompt"] for row in train]
    answers = {row["prompt"]: row["answer"] for row in train}
    differing = sum(row["completion"] != answers[row["prompt"]] for row in demonstrations)
    assert len(demonstrations) == 4 * len(train)
    assert wrong == differing / len(demonstrations) == pytest.approx(0.36, abs=0.01)
    assert rl.data.eval[0].path == sft.data.eval[0].path == str(folder.held_out)


def test_every_row_fits_the_model_and_its_alphabet(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = DemoFolder(tmp_path)
    assert 100_000 < write_model(folder.model, 0) < 200_000
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    assert len(tokenizer("47+85=231", add_special_tokens=False)["input_ids"]) == 9
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_an_earlier_demo_is_moved_aside_and_nothing_else_is_touched(tmp_path: Path) -> None:
    console = Console(quiet=True)
    folder = DemoFolder(tmp_path / "demo")
    make_room(folder, console)  # not there yet
    folder.path.mkdir()
    make_room(folder, console)  # empty
    write_run_files(folder, 0)
    make_room(folder, console)
    assert not folder.path.exists()
    assert DemoFolder(tmp_path / "demo.old-1").is_demo()
    folder.path.mkdir()
    (folder.path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not a demo"):
        make_room(folder, console)
    assert (folder.path / "thesis.txt").read_text() == "mine"


def test_a_folder_that_is_no_demo_is_refused_with_exit_code_2(tmp_path: Path, run: Run) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert "is not a demo" in run("demo", "--output", str(tmp_path), code=2)


def test_help_has_examples(run: Run) -> None:
    assert "burnish rl runs/demo/rl.yaml" in run("demo", "--help")


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with num_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


ATTEMPTS = [
    Attempt("47+85=", "231", "221", "231"),
    Attempt("12+34=", "640", "640", "640"),
    Attempt("55+45=", "001", "090", "090"),
    Attempt("10+10=", "020", "020", "02"),
]


def test_counts_name_every_change() -> None:
    assert list(counts(ATTEMPTS)) == ["became right 1, stayed right 1, stayed wrong 1, became wrong 1"]


def test_the_table_shows_answers_in_the_usual_order_and_also_what_is_still_wrong() -> None:
    assert [attempt.prompt for attempt in chosen(ATTEMPTS)] == ["47+85=", "12+34=", "55+45="]
    console = Console(record=True, width=100, file=io.StringIO())
    show_attempts(ATTEMPTS, console)
    text = " ".join(console.export_text().split())
    assert "47+85= 132 122 132" in text
    assert "55+45= 100 090 090" in text


def test_a_demo_that_is_still_going_on_is_not_moved_aside(tmp_path: Path) -> None:
    """Neither while it writes its data, before there is a run file, nor while one of its two runs trains."""
    folder = DemoFolder(tmp_path / "demo")
    with RunLock(folder.path), pytest.raises(CheckpointError, match="demo is in use by process"):
        make_room(folder, Console(quiet=True))
    write_run_files(folder, 0)
    with RunLock(folder.rl_run), pytest.raises(CheckpointError, match="rl is in use by process"):
        make_room(folder, Console(quiet=True))
    make_room(folder, Console(quiet=True))
    assert DemoFolder(tmp_path / "demo.old-1").is_demo()
