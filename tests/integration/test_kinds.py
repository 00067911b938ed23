"""A kind of run from a user's file has everything that the built-in ones have, without another file being touched."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from runs import trace, write_lines
from typer.testing import CliRunner

import burnish
from burnish.cli.app import build_app
from burnish.config import kinds
from burnish.config.reference import reference_page
from burnish.errors import ConfigError

RUN = """
output: run
model: {path: MODEL, device: cpu}
data: {train: train.jsonl, eval: eval.jsonl}
highest: 9
evaluation: {every_steps: 4}
checkpoint: {every_steps: 2}
logging: {sinks: []}
"""


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[kinds.Kind]:
    """The kind `count`, for one test."""
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    kind = importlib.import_module("counting_kind").COUNTING
    kinds.register(kind)
    return kind


@pytest.fixture
def run_file(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"numbers": [(first + n) % 10 for n in range(5)]} for first in range(10)]
    for name in ("train", "eval"):
        write_lines(Path(f"{name}.jsonl"), rows)
    Path("count.yaml").write_text(RUN.replace("MODEL", str(tiny_model)))
    return "count.yaml"


def said(*words: str) -> str:
    """What `burnish WORDS` prints, which succeeds."""
    done = CliRunner().invoke(build_app(), list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_is_planned_checked_and_documented(counting: kinds.Kind, run_file: str) -> None:
    plan = burnish.plan(run_file)
    assert (plan.steps, plan.plan.passes_over_data, plan.plan.models[0].because) == (4, 1.6, "learns to count")
    assert "Adam moments" in {item.name for item in plan.plan.memory}
    shared = burnish.plan(run_file, cluster={"trainers": 2})
    assert [seat.name for seat in shared.plan.seats] == ["controller", "trainer 0", "trainer 1"]
    assert "rows_per_step" in said("plan", run_file)
    assert "one step" in said("plan", run_file, "--on", "8xH100-80GB")
    assert "10 rows" in said("check", run_file)
    assert "burnish count" in said("plan", run_file, "--slurm", "cluster.trainers=2")
    assert "Train a model to count." in said("--help")
    page = reference_page()
    assert "| `burnish count` | `burnish.count` | a model, to go on with rows of numbers |" in page
    assert "## Run files of `burnish count`" in page
    assert "| `rows_per_step` |" in page


def test_its_run_file_is_checked(counting: kinds.Kind, run_file: str) -> None:
    with pytest.raises(ConfigError, match=r"highst is not a known key\n.*did you mean highest"):
        burnish.count(run_file, highst=3)
    with pytest.raises(ConfigError, match=r"cluster.lanes is 3, which 2 trainers cannot share"):
        burnish.count(run_file, cluster={"trainers": 2, "lanes": 3})


@pytest.mark.slow
def test_it_is_trained_resumed_evaluated_and_reported(counting: kinds.Kind, run_file: str, one_thread: None) -> None:
    said("count", run_file, "steps=2")
    run = burnish.count(run_file, quiet=True)
    assert run.step == 4
    losses = run.metrics["eval/loss"]
    assert losses[4] < losses[0]
    assert "perplexity" in said("eval", "run@best")
    evaluated = burnish.evaluate(run, quiet=True)
    assert evaluated["eval/loss"] == pytest.approx(losses[4], abs=1e-5)
    assert "rows_per_step" in run.report().read_text()
    said("count", run_file, "output=straight", "steps=4")
    assert trace(Path("run")).state == trace(Path("straight")).state


@pytest.mark.slow
def test_it_is_trained_by_two_processes(counting: kinds.Kind, run_file: str) -> None:
    said("count", run_file, "output=one", "cluster.lanes=2", "cluster.threads=1")
    said("count", run_file, "output=two", "cluster.trainers=2", "cluster.threads=1")
    assert trace(Path("one")) == trace(Path("two"))


def test_the_name_of_a_kind_is_taken_once(counting: kinds.Kind) -> None:
    kinds.register(counting)
    with pytest.raises(ConfigError, match="'count' is registered already"):
        kinds.register(replace(counting, trains="something else"))
    with pytest.raises(ConfigError, match=r"no kind of run is called 'cuont'.*\n.*count"):
        kinds.find_kind("cuont")
