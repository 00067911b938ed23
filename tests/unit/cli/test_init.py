"""`burnish init`: files that later commands take as they are, and no file overwritten."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.config.loading import load_run_file

from .conftest import Run

CSV = 'Question,solution,level\n"What is 2+2?",4,1\n"What is 3+2?",5,2\n'
ANSWERS = ("--data", "q.csv", "--column", "prompt=Question", "--model", "Qwen/Qwen2.5-0.5B-Instruct")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.csv").write_text(CSV)
    return tmp_path


def test_the_files_of_a_first_run(folder: Path, run: Run) -> None:
    said = run("init", "first", *ANSWERS, "--reward", "own")
    assert "q.csv: 2 rows, layout prompt" in said
    assert "prompt <- Question, answer <- solution" in said
    config = load_run_file("first/run.yaml").config
    assert (config.output, config.model.path, config.data.chat) == ("first/run", ANSWERS[-1], "always")
    assert [reward.name for reward in config.all_rewards] == ["first/reward.py:reward"]
    assert "one of the data: answer, Question, solution, level" in (folder / "first/reward.py").read_text()
    assert "burnish rl first/run.yaml " in (folder / "first/README.md").read_text()
    assert "2 of 2 gold answers reach the top score 1" in run("check", "first/run.yaml")


def test_a_built_in_needs_no_file_and_rows_without_an_answer_another_function(folder: Path, run: Run) -> None:
    (folder / "texts.jsonl").write_text('{"prompt": "Once"}\n')
    (folder / "held_out.csv").write_text(CSV.replace("2+2", "2+4"))
    assert "share of the mixture" not in run("init", "math", *ANSWERS, "--reward", "math", "--eval", "held_out.csv")
    assert load_run_file("math/run.yaml").config.data.eval[0].columns == {"prompt": "Question"}
    assert sorted(path.name for path in (folder / "math").iterdir()) == ["README.md", "run.yaml"]
    run("init", "texts", "--data", "texts.jsonl", "--reward", "own", "--model", "m")
    assert "def reward(response: str) -> float:" in (folder / "texts/reward.py").read_text()


@pytest.mark.parametrize("name", ["run.yaml", "reward.py", "README.md"])
def test_nothing_is_overwritten(folder: Path, name: str, run: Run) -> None:
    (folder / name).write_text("mine")
    assert f"{name} exists already" in run("init", *ANSWERS, "--reward", "own", code=2)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["q.csv", name])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "q.csv"), "--column=prompt=COLUMN"),
        (("--data", "q.csv", "--column", "Question"), "write ROLE=COLUMN"),
        (ANSWERS, "--reward is not given, and the input is not a terminal"),
        ((*ANSWERS, "--reward", "exakt"), "did you mean 'exact'?"),
    ],
)
def test_a_refusal_says_what_to_do_and_writes_nothing(
    folder: Path, words: tuple[str, ...], message: str, run: Run
) -> None:
    assert message in run("init", *words, code=2)
    assert [path.name for path in folder.iterdir()] == ["q.csv"]


@pytest.mark.slow
def test_three_questions_on_a_terminal(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "burnish", "init", "--column", "prompt=Question"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
    os.write(ours, b"q.csv\n\nmodels/mine\n")
    said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0
    assert "Reward (own: a function in reward.py; or one of burnish check --list) [own]:" in said
    assert load_run_file(folder / "run.yaml").config.model.path == "models/mine"
