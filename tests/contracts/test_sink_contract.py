"""What every MetricSink must keep. Add a sink to SINKS to hold it to the same rules."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import ConfigError
from burnish.observability.history import read_rows
from burnish.observability.sinks import build_sinks

CALLS: list[tuple[Any, ...]] = []


class Recorder:
    """A user's sink that writes down how it was used."""

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any], resume_step: int | None) -> None:
        assert run_dir.is_dir()
        CALLS.append(("built", run_dir, project, dict(config), resume_step))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        CALLS.append(("write", step, dict(row)))

    def close(self) -> None:
        CALLS.append(("close",))


class Greedy(Recorder):
    """Asks for more than a sink is given."""

    def __init__(self, run_dir: Path, *, project: str, password: str) -> None: ...


SINKS = ["tensorboard", "sinks_of_mine:Recorder"]


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("sinks_of_mine")
    vars(made).update(Recorder=Recorder, Greedy=Greedy, number=3, Path=Path)
    monkeypatch.setitem(sys.modules, "sinks_of_mine", made)
    CALLS.clear()


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_takes_rows_is_closed_and_can_be_opened_again(tmp_path: Path, name: str) -> None:
    """Rows differ in what they hold; a resumed run writes the steps after its checkpoint again."""
    for resume_step, steps in ((None, (0, 1, 2)), (1, (2, 3))):
        sinks = build_sinks([name], tmp_path, project="p", config={"steps": 3}, resume_step=resume_step)
        for step in steps:
            sinks.write(step, {"reward/mean": step / 4, f"only/{step}": 1.0})
        sinks.close()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]


def test_a_class_from_outside_is_told_about_the_run_and_gets_every_row(tmp_path: Path) -> None:
    name = "sinks_of_mine:Recorder"
    sinks = build_sinks([name, name], tmp_path, project="p", config={"seed": 3}, resume_step=7)
    sinks.write(8, {"reward/mean": 0.5})
    sinks.close()
    built = ("built", tmp_path, "p", {"seed": 3}, 7)
    assert tuple(CALLS) == (built, ("write", 8, {"reward/mean": 0.5}), ("close",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sinks_of_mine:Recordr", "did you mean 'Recorder'"),
        ("sinks_of_mine:number", "is a int"),
        ("sinks_of_mine:Path", "no method write and no close"),
        ("sinks_of_mine:Greedy", r"must take \(run_dir, \*, project, config, resume_step\)"),
        ("no_such_package:Sink", "cannot import module"),
    ],
)
def test_what_is_no_sink_is_refused_and_touches_nothing(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_sinks([name], tmp_path)
    assert list(tmp_path.iterdir()) == []
