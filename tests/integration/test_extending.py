"""docs/extending.md holds complete programs: they are taken from the page and run as they stand there."""

import csv
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import rollouts_of, rows_of

from burnish.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_MODULES = ("my_parts",)


@dataclass(frozen=True)
class Block:
    section: str
    language: str
    text: str


def page_blocks() -> list[Block]:
    pieces = SECTION.split(PAGE.read_text())
    sections = zip(pieces[1::2], pieces[2::2], strict=True)
    return [Block(title, language, text) for title, body in sections for language, text in BLOCK.findall(body)]


def settings(section: str) -> dict[str, Any]:
    (block,) = [b for b in page_blocks() if b.section == section and b.language == "yaml"]
    return yaml.safe_load(block.text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a user who wrote down the page's files and starts the commands there."""
    written: dict[str, str] = {}
    for block in page_blocks():
        if block.language == "python":
            name = block.text.partition("\n")[0].removeprefix("# ")
            written[name] = written.get(name, "") + block.text
        if block.language == "json":
            (tmp_path / "shop.jsonl").write_text(block.text)
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(PAGE.parent.parent))])
    importlib.invalidate_caches()
    yield tmp_path
    for module in OWN_MODULES:
        sys.modules.pop(module, None)


@pytest.fixture
def write_run(folder: Path, tiny_model: Path, tiny_task: Path) -> Callable[..., Path]:
    """A run file on the tiny task, with the page's settings in place of the sections they name."""

    def write(**sections: Any) -> Path:
        data = {
            "output": "run",
            "model": str(tiny_model),
            "data": {"train": str(tiny_task / "train.jsonl")},
            "rewards": [{"name": f"{tiny_task / 'reward.py'}:digits"}],
            "scoring": {"workers": 1},
            "algorithm": "grpo",
            "steps": 2,
            "rollout": {"prompts_per_step": 4, "group_size": 4, "max_prompt_tokens": 8, "max_response_tokens": 4},
            "optimization": {"learning_rate": 1e-3, "minibatches": 2},
            "logging": {"sinks": []},
        }
        for name, section in sections.items():
            data[name] = {**data[name], **section} if isinstance(data[name], dict) else section
        path = folder / "run.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    return write


def test_every_section_but_the_overview_has_code() -> None:
    languages = {block.section: block.language for block in page_blocks()}
    assert set(languages) == {
        "An advantage estimator",
        "A policy loss",
        "An engine",
        "A sink",
        "A reward",
        "A data layout",
    }


@pytest.mark.slow
def test_estimator(folder: Path, write_run: Callable[..., Path]) -> None:
    path = write_run(**settings("An advantage estimator"))
    assert main(["rl", str(path)]) == 0
    scored: dict[int, list[dict[str, Any]]] = {}
    for line in rollouts_of(folder / "run"):
        scored.setdefault(line["group_id"], []).append(line)
    for group in scored.values():
        mean = sum(line["reward"] for line in group) / len(group)
        for line in group:
            sign = (line["reward"] > mean) - (line["reward"] < mean)
            assert line["advantage"] == pytest.approx(0.5 * sign)
    assert any(line["advantage"] for line in rollouts_of(folder / "run"))


@pytest.mark.slow
def test_policy_loss(folder: Path, write_run: Callable[..., Path]) -> None:
    assert main(["rl", str(write_run(**settings("A policy loss")))]) == 0
    assert [row["step"] for row in rows_of(folder / "run")] == [1, 2]
    for row in rows_of(folder / "run"):
        assert row["policy/distance"] > 0  # the second minibatch is one update away from the sampler
        assert row["policy/grad_norm"] > 0


@pytest.mark.slow
def test_engine(folder: Path, write_run: Callable[..., Path]) -> None:
    assert main(["rl", str(write_run(**settings("An engine")))]) == 0
    assert sys.modules["my_parts"].CountingEngine.asked == 2 * 4 * 4
    own = rows_of(folder / "run")
    assert main(["rl", str(write_run()), "output=local"]) == 0
    local = rows_of(folder / "local")
    assert [row["reward/mean"] for row in own] == [row["reward/mean"] for row in local]
    assert [row["policy/grad_norm"] for row in own] == [row["policy/grad_norm"] for row in local]


@pytest.mark.slow
def test_sink(folder: Path, write_run: Callable[..., Path]) -> None:
    path = str(write_run(**settings("A sink")))
    assert main(["rl", path, "steps=1"]) == 0
    assert main(["rl", path, "steps=2"]) == 0  # goes on after the first step
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        written = {(int(step), name): float(value) for step, name, value in csv.reader(file)}
    expected = {
        (int(row["step"]), name): value
        for row in rows_of(folder / "run")
        for name, value in row.items()
        if name != "step"
    }
    assert {step for step, _ in expected} == {1, 2}
    assert written == expected
    assert list((folder / "run" / "tensorboard").iterdir())


@pytest.mark.slow
def test_reward(folder: Path, write_run: Callable[..., Path]) -> None:
    assert main(["rl", str(write_run(**settings("A reward")))]) == 0
    answers = {f"{a}+{b}=": f"{a + b:02d}" for a in range(10) for b in range(10)}
    for line in rollouts_of(folder / "run"):
        solved = line["response"].strip() == answers[line["prompt"]]
        assert line["reward"] == pytest.approx(solved - 0.05 * len(line["response"]))


def test_data_layout(folder: Path, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(**settings("A data layout"))
    words = ["rewards.0.name=exact", "rollout.prompts_per_step=1"]
    assert main(["check", str(path), *words]) == 0
    assert "1 of 1 gold answers" in capsys.readouterr().out
    assert main(["rl", str(path), *words]) == 0
    assert {(line["prompt"], line["answer"], line["domain"]) for line in rollouts_of(folder / "run")} == {
        ("1+2=", "03", "small")
    }
