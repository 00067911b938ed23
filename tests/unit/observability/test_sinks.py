"""Metric rows on disk, and services that are not installed."""

from __future__ import annotations

import builtins
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import BurnishError, ConfigError, DataError, DivergenceError
from burnish.observability.history import read_history, read_rows
from burnish.observability.sinks import JsonlSink, build_sinks


def test_a_line_a_step_that_reads_back_exactly(tmp_path: Path) -> None:
    sinks = build_sinks([], tmp_path)
    sinks.write(0, {"b": 0.1 + 0.2, "a": 1e-300})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "a": 1e-300, "b": 0.30000000000000004}\n'
    sinks.write(1, {"a": 2.0})
    sinks.close()
    assert read_history(tmp_path) == {"a": ([0, 1], [1e-300, 2.0]), "b": ([0], [0.30000000000000004])}


def test_resuming_drops_later_and_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "a": 1.0}\n{"step": 1, "a": 2.0}\n{"step": 2, "a": 3.0}\n{"step": 3, "a"')
    sink = JsonlSink(path, resume_step=1)
    sink.write(2, {"a": 9.0})
    sink.close()
    assert [(row["step"], row["a"]) for row in read_rows(path)] == [(0, 1.0), (1, 2.0), (2, 9.0)]
    assert list(tmp_path.iterdir()) == [path]


def test_an_undisturbed_and_a_resumed_file_are_the_same_bytes(tmp_path: Path) -> None:
    whole, cut = JsonlSink(tmp_path / "whole"), JsonlSink(tmp_path / "cut")
    for step in range(5):
        whole.write(step, {"z": step / 3, "a": -0.0})
    for step in range(4):
        cut.write(step, {"z": step / 3, "a": -0.0})
    resumed = JsonlSink(tmp_path / "cut", resume_step=2)
    for step in (3, 4):
        resumed.write(step, {"z": step / 3, "a": -0.0})
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "cut").read_bytes()


def test_a_new_run_starts_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("rubbish\n")
    JsonlSink(tmp_path / "metrics.jsonl").close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_numbers_are_refused_by_name(tmp_path: Path, value: float) -> None:
    sink = JsonlSink(tmp_path / "m")
    with pytest.raises(DivergenceError, match=f"step 3: metrics that are not finite: policy/kl = {value}"):
        sink.write(3, {"policy/kl": value, "fine": 1.0})
    assert (tmp_path / "m").read_text() == ""


def test_a_step_comes_once(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m")
    sink.write(1, {})
    with pytest.raises(ValueError, match="step 1 comes after step 1"):
        sink.write(1, {})


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nnonsense\n{"step": 1}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2 is not a row"):
        read_rows(path)


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonlSink(tmp_path / "m")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BurnishError, match=r"No space left(.|\n)*free space on the disk"):
        sink.write(0, {"a": 1.0})


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_service_names_the_command_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original = builtins.__import__

    def without(module: str, *rest: Any, **named: Any) -> Any:
        if module.split(".")[0] == name:
            raise ImportError(module)
        return original(module, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=rf"{name} is not installed(.|\n)*pip install 'burnish\[{name}\]'"):
        build_sinks([name], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_sink_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'(.|\n)*tensorboard, wandb, mlflow and package"):
        build_sinks(["tensorbord"], tmp_path)


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    sinks = build_sinks(["tensorboard"], tmp_path)
    sinks.write(1, {"reward/mean": 0.25})
    sinks.write(2, {"reward/mean": 0.5})
    sinks.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == {"step": 2, "reward/mean": 0.5}
