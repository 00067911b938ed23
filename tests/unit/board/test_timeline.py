"""Shares of time and of phases, by hand."""

import json
from pathlib import Path

import pytest

from burnish.board.timeline import picture_of

STEPS = {
    1: [("run", "generate", 10.0, 14.0), ("run", "update", 14.0, 20.0), ("rollout worker 0", "generate", 8.0, 13.0)],
    2: [
        *(("run", "generate", 20.0, 22.0), ("run", "update", 23.0, 30.0), ("trainer 0", "policy.update", 23.0, 30.0)),
        *(("rollout worker 0", "generate", 19.0, 21.0), ("rollout worker 0", "load", 20.0, 22.0)),
        ("trainer 0", "policy.update", 14.0, 17.0),
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [json.dumps({"step": step, "spans": spans}, separators=(",", ":")) for step, spans in STEPS.items()]
    (tmp_path / "timeline.jsonl").write_text("".join(line + "\n" for line in lines))
    return tmp_path


def test_two_steps_of_three_processes(folder: Path) -> None:
    picture = picture_of(folder, 1, 2)
    main, worker, trainer = picture["lanes"]
    assert (picture["seconds"], picture["ends"]) == (20.0, {1: 10.0, 2: 20.0})
    assert picture["phases"] == {"generate": pytest.approx(6 / 20), "update": pytest.approx(13 / 20)}
    assert (main["process"], worker["process"], trainer["process"]) == ("run", "rollout worker 0", "trainer 0")
    assert main["at_work"] == pytest.approx(19 / 20)
    # At work from 10 (cut there) to 13 and from 19 to 22, where its spans overlap: 3 + 3 seconds.
    assert worker["at_work"] == pytest.approx(6 / 20)
    assert worker["during"] == {"generate": pytest.approx(5 / 6), "update": pytest.approx(1 / 13)}
    assert worker["spans"][0] == ("generate", 0.0, 3.0)
    assert trainer["during"] == {"generate": 0.0, "update": pytest.approx(10 / 13)}


def test_one_step_and_none(folder: Path) -> None:
    assert picture_of(folder, 1, 1)["seconds"] == 10.0
    assert picture_of(folder, 3, 9)["lanes"] == picture_of(folder / "other", 1, 2)["lanes"] == []
