"""Sweeps with commands that end as they are told, and one of real runs."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer.testing import CliRunner
from watching import wait_for

import burnish
from burnish.checkpointing.run import RunDirectory
from burnish.cli.app import build_app
from burnish.config.loading import load_run_data
from burnish.errors import ConfigError
from burnish.experiments import sweep as sweeping
from burnish.experiments.settings import settings_of
from burnish.experiments.sweep import SweptRun, checked_runs, last_error, train_all
from burnish.observability.control import RunEnding, write_ending
from burnish.outside.supervise import Child, start

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[-1].partition("=")[2])
seed = int(next(word for word in sys.argv if word.startswith("seed=")).partition("=")[2])
print("begin", seed, *filter(None, [os.environ.get("CUDA_VISIBLE_DEVICES")]), flush=True)
if seed == 1:
    sys.exit("error: seed 1 is bad\\n  -> take another")
if seed == 9:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    print("waiting", flush=True)
    time.sleep(60)
(folder / "finished.json").write_text(json.dumps({"step": 3, "because": "all steps are made"}))
"""


Swept = Callable[..., list[SweptRun]]


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Swept:
    """The runs of a sweep over these words, whose command is `PROGRAM`."""

    def begin(command: list[str], **how: Any) -> Child:
        return start([sys.executable, "-c", PROGRAM, *command[3:]], **how)

    monkeypatch.setattr(sweeping, "start", begin)
    data = {"model": "m", "data": {"train": "t"}, "rewards": "exact", "output": str(tmp_path / "sweep"), "steps": 3}

    def runs(*words: str) -> list[SweptRun]:
        return checked_runs(lambda words: load_run_data(data, words, "rl"), settings_of(words))

    return runs


def states(runs: list[SweptRun]) -> list[str]:
    return [run.state for run in runs]


def train(runs: list[SweptRun], jobs: int = 1, say: Callable[[str], None] | None = None) -> list[str]:
    """Train all of them; returns what was said."""
    said = list[str]()
    train_all(runs, "run.yaml", jobs=jobs, say=say or said.append)
    return said


def test_a_failed_run_does_not_end_the_others_and_says_why(swept: Swept) -> None:
    runs = swept("seed=0..2")
    said = train(runs, jobs=2)
    assert states(runs) == ["finished", "failed", "finished"]
    assert runs[1].error == "seed 1 is bad -> take another"
    assert said[0] == "3 runs"
    assert runs[0].log.read_text() == "begin 0\n"
    assert runs[1].folder.name == "seed=1"


def test_runs_that_train_at_a_time_divide_the_gpus(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr(sweeping, "visible_gpus", lambda: 4)
    runs = swept("seed=0,2,3")
    said = train(runs, jobs=2)
    assert {run.log.read_text().split()[2] for run in runs[:2]} == {"4,5", "6,7"}
    assert runs[2].log.read_text() in ("begin 3 4,5\n", "begin 3 6,7\n")
    assert said[1].endswith("console.log) on GPU 4,5")


def test_what_is_finished_is_skipped_only_if_it_is_the_same_run(swept: Swept) -> None:
    runs = swept("seed=0,2")
    for run in runs:
        directory = RunDirectory(run.folder)
        directory.begin(run.config)
        write_ending(directory.path, RunEnding(3, "all steps are made"))
    assert states(swept("seed=0,2")) == ["skipped", "skipped"]
    assert states(swept("seed=0,2", "steps=4")) == ["waiting", "waiting"]
    assert states(swept("seed=0,2", "rollout.group_size=4")) == ["waiting", "waiting"]
    RunDirectory(runs[0].folder).begin(runs[0].config)  # it goes on
    again = swept("seed=0,2")
    assert states(again) == ["waiting", "skipped"]
    train(again)
    assert states(again) == ["finished", "skipped"]


def test_ctrl_c_lets_the_present_run_stop_and_starts_no_other(swept: Swept) -> None:
    runs = swept("seed=9,2")

    def press() -> None:
        wait_for(lambda: "waiting" in runs[0].log.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    train(runs, say=lambda text: threading.Thread(target=press).start() if text.startswith("started") else None)
    assert states(runs) == ["stopped", "waiting"]


def test_an_error_in_the_sweep_itself_leaves_no_process(swept: Swept, gone: Callable[..., bool]) -> None:
    broken = patch.object(sweeping._Training, "look", autospec=True, side_effect=RuntimeError("broken"))
    with broken as look, pytest.raises(RuntimeError, match="broken"):
        train(swept("seed=9,2"))
    assert gone(look.call_args.args[0].child.pid)


def test_all_runs_are_checked_before_one_starts(swept: Swept, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 of the 3 runs cannot start(.|\n)*algorithm=gpro(.|\n)*algorithm=rlo:"):
        swept("algorithm=grpo,gpro,rlo")
    RunDirectory(tmp_path / "sweep").begin(swept("seed=0,2")[0].config)
    with pytest.raises(ConfigError, match=r"is the folder of a run\n.*output=runs/sweep"):
        swept("seed=0,2")


def test_the_error_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("error: of an earlier start\nstep 1\nTraceback\nValueError: odd\n")
    assert last_error(log, 27, 1) == "ValueError: odd"
    assert last_error(log, 0, 1) == "of an earlier start"
    assert last_error(log, 0, -9) == "killed by signal 9 (Killed)"
    log.write_text("")
    assert last_error(log, 0, 3) == "exit status 3"


def test_values_for_other_processes() -> None:
    with pytest.raises(ConfigError, match=r"other processes(.|\n)*write rows, models and functions to files"):
        burnish.sweep({"model": "m", "rewards": [len]}, {"seed": [0, 1]})
    with pytest.raises(ConfigError, match=r"values of algorithm are a text, 'grpo'"):
        burnish.sweep("run.yaml", {"algorithm": "grpo"})


@pytest.mark.slow
def test_a_real_sweep_is_finished_skipped_and_compared(tmp_path: Path) -> None:
    """Two algorithms on the demo's task, through the command line and from Python."""
    from burnish.demo import problem_rows, split_problems, write_model

    write_model(tmp_path / "model", seed=0)
    train, held_out = split_problems(seed=0)
    for name, problems in (("train", train[:64]), ("eval", held_out[:16])):
        rows = "".join(json.dumps(row) + "\n" for row in problem_rows(problems))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    fields: dict[str, Any] = {
        "output": str(tmp_path / "sweep"),
        "model": {"path": str(tmp_path / "model"), "device": "cpu"},
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
        "rewards": "exact",
        "steps": 2,
        "rollout": {"prompts_per_step": 4, "group_size": 4, "max_response_tokens": 4},
        "evaluation": {"every_steps": 1},
        "logging": {"sinks": []},
        "cluster": {"threads": 1},
    }
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(fields))
    words = ["sweep", str(file), "algorithm=grpo,rloo", "--jobs", "2"]
    first, second = (CliRunner().invoke(build_app(), words, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert "2 of 2 runs are finished" in first.output
    assert "2 runs, 2 of them finished already" in second.output
    runs = burnish.sweep(fields, {"algorithm": ["grpo", "rloo"]}, quiet=True)
    assert states(runs) == ["skipped"] * 2
    with sweeping._as_file({"model": burnish.load_run(runs[0].folder), "output": tmp_path / "next"}) as named:
        assert Path(named).read_text() == f"model: {runs[0].folder}\noutput: {tmp_path}/next\n"
    results = burnish.table([tmp_path / "sweep"])
    assert [(group.label, len(group.runs)) for group in results.groups] == [("grpo", 1), ("rloo", 1)]
    bad = CliRunner().invoke(build_app(), ["sweep", str(file), f"data.train={tmp_path}/none.jsonl", "seed=5,6"])
    assert bad.exit_code == 1
    assert "2 failed" in bad.output
    assert "none.jsonl" in bad.output
