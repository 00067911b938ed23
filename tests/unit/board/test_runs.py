"""Which folders are runs, and what their files say about each."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from board_runs import write_rows

from burnish.board.runs import Runs, WatchedRun
from burnish.errors import ConfigError

GONE = 2**22 + 1
"""No process has such a number."""


def names(*folders: Path) -> list[str]:
    return list(Runs.below([str(folder) for folder in folders]).by_name)


def test_runs_are_found_below_the_given_folders_and_nowhere_else(tmp_path: Path) -> None:
    write_rows(tmp_path / "runs" / "a", {"step": 1})
    write_rows(tmp_path / "runs" / "deep" / "b", {"step": 1})
    write_rows(tmp_path / "runs" / ".hidden" / "c", {"step": 1})
    write_rows(tmp_path / "elsewhere", {"step": 1})
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "sly").mkdir()
    (tmp_path / "runs" / "sly" / "metrics.jsonl").symlink_to(tmp_path / "elsewhere" / "metrics.jsonl")
    assert names(tmp_path / "runs") == ["a", "deep/b"]
    assert names(tmp_path / "runs" / "a") == ["a"]
    assert names(tmp_path / "runs", tmp_path / "elsewhere") == ["runs/a", "runs/deep/b", "elsewhere"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Runs.below([str(tmp_path / "none")])


def test_runs_come_and_go(tmp_path: Path) -> None:
    runs = Runs.below([str(tmp_path)])
    write_rows(tmp_path / "a", {"step": 1})
    runs.scan()
    kept = runs.by_name["a"]
    write_rows(tmp_path / "b", {"step": 1})
    runs.scan()
    assert (list(runs.by_name), runs.by_name["a"] is kept) == (["a", "b"], True)


@pytest.mark.parametrize(
    ("lock", "steps", "later", "state"),
    [
        ({"pid": os.getpid(), "host": socket.gethostname()}, 10, 0, "running"),
        ({"pid": GONE, "host": socket.gethostname()}, 10, 0, "crashed"),
        ({"pid": 1, "host": "another"}, 10, 599, "running"),
        ({"pid": 1, "host": "another"}, 10, 601, "silent"),
        (None, 10, 0, "stopped"),
        (None, 3, 0, "finished"),
    ],
)
def test_state(tmp_path: Path, lock: dict[str, Any] | None, steps: int, later: float, state: str) -> None:
    write_rows(tmp_path, *({"step": step, "time/step_seconds": 2.0} for step in (1, 2, 3)))
    (tmp_path / "config.yaml").write_text(f"steps: {steps}\n")
    (tmp_path / "run.lock").write_text("" if lock is None else json.dumps(lock))
    run = WatchedRun.at("a", tmp_path)
    run.refresh()
    found = run.summary(run.table.changed + later)
    assert (found["state"], found["step"], found["total"]) == (state, 3, steps)
    # Seven steps of two seconds are left.
    assert found["left"] == (14.0 if state == "running" else None)


@pytest.mark.parametrize(("text", "state"), [('{"step": 1, "because": "loss is low"}', "finished"), ("{", "stopped")])
def test_a_run_that_ended_early_or_by_passes_is_finished(tmp_path: Path, text: str, state: str) -> None:
    write_rows(tmp_path, {"step": 1})
    (tmp_path / "config.yaml").write_text("steps: null\n")
    (tmp_path / "finished.json").write_text(text)
    assert WatchedRun.at("a", tmp_path).summary(0)["state"] == state


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("algorithm: {preset: rloo, estimator: rloo}\n", "rloo"),
        ("algorithm: {preset: null, estimator: grpo, loss: gspo}\n", "grpo · gspo"),
        ("losses:\n- {name: simpo, weight: 1.0}\n", "simpo"),
    ],
)
def test_the_head_names_the_algorithm(tmp_path: Path, text: str, named: str) -> None:
    write_rows(tmp_path, {"step": 1})
    (tmp_path / "config.yaml").write_text(text)
    assert WatchedRun.at("a", tmp_path).head()["algorithm"] == named


def test_a_pause_that_is_asked_for_is_seen(tmp_path: Path) -> None:
    write_rows(tmp_path, {"step": 1})
    (tmp_path / "run.lock").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "pause").touch()
    found = WatchedRun.at("a", tmp_path).summary(0)
    assert (found["state"], found["asked"]) == ("paused", ["pause"])


def test_runs_that_differ_in_their_seed_only_are_a_family(tmp_path: Path) -> None:
    families = []
    for text in ("seed: 1\nsteps: 5\n", "seed: 2\nsteps: 5\n", "seed: 1\nsteps: 6\n"):
        (tmp_path / "config.yaml").write_text(text)
        families.append(WatchedRun.at("a", tmp_path).head()["family"])
    assert families[0] == families[1] != families[2]


@pytest.mark.parametrize("damaged", [b"steps: [\n", b"\xff\x00", b"algorithm: {preset: 3}\nsteps: ten\n"])
def test_a_run_whose_files_are_damaged_still_has_a_row(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(damaged)
    (tmp_path / "run.lock").write_text("{torn")
    run = WatchedRun.at("a", tmp_path)
    run.refresh()
    assert (run.summary(0)["state"], run.head()["model"]) == ("stopped", "")
