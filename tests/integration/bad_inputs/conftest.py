"""What every table of bad inputs is run through: a folder in which all would work, one thing made wrong, one command.

A row is a dictionary: `name`; `says`, words of the message; and what makes it wrong, all of it optional:

- `base`: which run file to begin with (`rl`, `sft`, `rm`), or the whole text of one (str or bytes)
- `text`: further lines of the run file
- `words`: what follows the command's file on the command line (a list, or a text with blanks between the words)
- `files`: name to content (str or bytes) of files beside the run file
- `make`: a function of the folder, for what no content can say (links, pipes, weights)
- `command`: the words before `words`; the command of the base with the run file when it is not given
- `code`: the exit code, 2 when it is not given
"""

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from burnish.cli import main

DEADLINE_SECONDS = 30
Row = dict[str, Any]
Refuse = Callable[[Mapping[str, Any]], None]

BASES = {
    "rl": """\
output: run
model: ./model
data:
  train: train.jsonl
rewards: "reward.py:digits"
scoring: {workers: 1}
steps: 2
rollout: {prompts_per_step: 2, group_size: 2, max_prompt_tokens: 8, max_response_tokens: 4}
evaluation: {at_start: false}
logging: {sinks: []}
""",
    "sft": "output: run\nmodel: ./model\ndata: {train: sft.jsonl}\nmax_tokens: 16\nsteps: 2\nlogging: {sinks: []}\n",
    "rm": "output: run\nmodel: ./model\ndata: {train: pairs.jsonl}\nmax_tokens: 16\nsteps: 2\nlogging: {sinks: []}\n",
}
FILES = {
    "sft.jsonl": '{"prompt": "1+1=", "completion": "2"}\n' * 4,
    "pairs.jsonl": '{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n' * 4,
}


def row(name: str, *says: str, **how: Any) -> Row:
    return {"name": name, "says": says, **how}


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in rows)


def pairs(name: str, *says: str, rows: list[Any], **how: Any) -> Row:
    """A row of `burnish rm` with these comparisons."""
    return row(name, *says, base="rm", files={"pairs.jsonl": lines(rows)}, **how)


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, tiny_task: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, data and a reward that would all work."""
    shutil.copytree(tiny_model, tmp_path / "model")
    for name in ("train.jsonl", "reward.py"):
        shutil.copy(tiny_task / name, tmp_path)
    for name, content in {"run.yaml": BASES["rl"], **FILES}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # to which a command adds its working folder, for good
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """An AssertionError in whatever is still going on after so many seconds."""

    before = signal.signal(signal.SIGALRM, Mock(side_effect=AssertionError(f"nothing said after {seconds} s")))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def refuse(folder: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Runs a row and asserts that it ends in time, with its exit code, and with one message that says its words."""

    def run(row: Mapping[str, Any]) -> None:
        base = row.get("base", "rl")
        whole = BASES.get(base, base)
        content = whole.encode() if isinstance(whole, str) else whole
        (folder / "run.yaml").write_bytes(content + row.get("text", "").encode("utf-8", "surrogatepass"))
        for name, content in row.get("files", {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        row.get("make", lambda folder: None)(folder)
        words = row.get("words", ())
        command = row.get("command", (base if base in BASES else "rl", "run.yaml"))
        with deadline(DEADLINE_SECONDS):
            code = main([*command, *(words.split() if isinstance(words, str) else words)])
        captured = capsys.readouterr()
        assert code == row.get("code", 2), captured.out + captured.err
        assert "Traceback (most recent" not in captured.err, captured.err
        assert any(word in captured.err for word in ("-> ", "Usage: ", "─ Error ─")), f"no remedy: {captured.err}"
        for said in row["says"]:
            assert said in captured.err, captured.err

    return run
