"""Metric rows on disk, and services that are not installed."""

import errno
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from burnish.errors import BurnishError, ConfigError, DataError, DivergenceError
from burnish.observability.history import read_history, read_rows
from burnish.observability.sinks import JsonlSink, build_sinks, mlflow_name


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
    for name, steps, resume_step in (("whole", range(5), None), ("cut", range(4), None), ("cut", (3, 4), 2)):
        sink = JsonlSink(tmp_path / name, resume_step=resume_step)
        for step in steps:
            sink.write(step, {"z": step / 3, "a": -0.0})
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


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_service_names_the_command_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed(.|\n)*pip install 'burnish\[{name}\]'"):
        build_sinks([name], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_sink_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'(.|\n)*tensorboard, wandb, mlflow, trackio and package"):
        build_sinks(["tensorbord"], tmp_path)


def test_tensorboard_gets_every_number_and_a_run_that_begins_anew_hides_what_a_killed_one_wrote(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for values in ([1.0] * 5, [0.25, 0.5]):  # the first one ended before its first checkpoint
        sinks = build_sinks(["tensorboard"], tmp_path)
        for step, value in enumerate(values, start=1):
            sinks.write(step, {"reward/mean": value})
        sinks.close()
        time.sleep(1.1)  # files are named by the second
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]
    assert read_rows(tmp_path / "metrics.jsonl")[1:] == [{"step": 2, "reward/mean": 0.5}]


ROWS = "".join(f'{{"step": {step}, "a": {step}.5}}\n' for step in range(5))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([0, 1, 3, 4], "lacks the line of step 2, although"),
        ([0, 1, 2, 3], "lacks the line of step 4, although"),
        ([0, 4], r"lacks the line of step 1 \(and 2 more\)"),
        ([0, 1, 1, 2, 3, 4], r"metrics\.jsonl:3 is the line of step 1, but follows the line of step 1"),
        ([0, 2, 1, 3, 4], r"metrics\.jsonl:3 is the line of step 1, but follows the line of step 2"),
    ],
)
def test_a_line_lost_doubled_or_out_of_order_is_named(tmp_path: Path, lines: list[int], told: str) -> None:
    path, written = tmp_path / "metrics.jsonl", ROWS.splitlines(keepends=True)
    path.write_text("".join(written[line] for line in lines))
    with pytest.raises(DataError, match=told):
        JsonlSink(path, resume_step=4)
    assert path.read_text() == "".join(written[line] for line in lines)


@pytest.mark.parametrize(
    "text", ["nonsense", '{"step": 1, "a": NaN}', '{"step": 1, "a": "x"}', '{"step": true}', "[" * 100_000]
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n' + text + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:2 is not a row of metrics"):
        read_rows(tmp_path / "metrics.jsonl")


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(DataError, match=r"metrics\.jsonl is a folder, not a file"):
        read_rows(tmp_path / "metrics.jsonl")
    with pytest.raises(BurnishError, match=r"metrics\.jsonl"):
        JsonlSink(tmp_path / "metrics.jsonl")


def test_a_file_that_is_gone_or_begins_late_goes_on_with_an_alarm(tmp_path: Path) -> None:
    sinks = build_sinks([], tmp_path, resume_step=3)
    (alarm,) = sinks.alarms
    assert alarm.message == "metrics.jsonl lacks its first 3 steps, so the file or part of it was removed"
    sinks.write(4, {})
    sinks.close()
    again = build_sinks([], tmp_path, resume_step=4)
    assert [alarm.name for alarm in again.alarms] == ["metrics missing"]
    again.close()


def test_a_file_removed_while_it_is_written_is_made_anew_with_all_its_lines(tmp_path: Path) -> None:
    sinks = build_sinks([], tmp_path)
    assert sinks.write(1, {"a": 1.0}) == []
    (tmp_path / "metrics.jsonl").unlink()
    (alarm,) = sinks.write(2, {"a": 2.0})
    assert "was removed during the run and has been restored with all its lines" in alarm.message
    (tmp_path / "metrics.jsonl").rename(tmp_path / "elsewhere")
    assert len(sinks.write(3, {"a": 3.0})) == 1
    assert sinks.write(4, {"a": 4.0}) == []
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["truncated", "replaced", "appended to"])
def test_a_file_that_somebody_else_changes_stops_the_run(tmp_path: Path, how: str) -> None:
    path, sink = tmp_path / "metrics.jsonl", build_sinks([], tmp_path)
    sink.write(1, {"a": 1.0})
    if how == "replaced":
        path.rename(tmp_path / "elsewhere")
    path.write_text("" if how == "truncated" else path.read_text() + "x\n" if path.exists() else "x\n")
    with pytest.raises(BurnishError, match="was changed or replaced while the run was writing to it"):
        sink.write(2, {"a": 2.0})


def test_a_line_that_the_disk_refuses_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonlSink(tmp_path / "m")
    sink.write(1, {"a": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(BurnishError, match=r"No space left(.|\n)*free space on the disk"):
            sink.write(2, {"a": 2.0})
    sink.write(2, {"a": 3.0})
    assert [(row["step"], row["a"]) for row in read_rows(tmp_path / "m")] == [(1, 1.0), (2, 3.0)]


class Broken:
    """A sink that raises at one place."""

    def __init__(self, run_dir: Path, *, project: str, config: Any, resume_step: int | None) -> None:
        self._fail("constructor")

    def write(self, step: int, row: Any) -> None:
        self._fail("write")

    def close(self) -> None:
        self._fail("close")

    def _fail(self, here: str) -> None:
        if here == PLACE[0]:
            raise SystemExit("the service is down") if here == "write" else KeyError("the service is down")


PLACE = [""]


@pytest.mark.parametrize(
    ("place", "doing"), [("constructor", "was opened"), ("write", "wrote step 1"), ("close", "clos")]
)
def test_a_sink_that_raises_is_dropped_with_an_alarm_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, doing: str
) -> None:
    monkeypatch.setattr(f"{__name__}.PLACE", [place])
    name = f"{__name__}:Broken"
    sinks = build_sinks([name, "tensorboard"], tmp_path)
    (alarm,) = [*sinks.alarms, *sinks.write(1, {"a": 1.0}), *sinks.write(2, {"a": 2.0}), *sinks.close()]
    assert (alarm.name, name in alarm.message, doing in alarm.message) == ("sink dropped", True, True)
    assert "the service is down" in alarm.message
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2]
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_file_in_the_place_of_the_tensorboard_folder_costs_only_tensorboard(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("")
    sinks = build_sinks(["tensorboard"], tmp_path)
    (alarm,) = sinks.alarms
    assert "the sink tensorboard failed while it was opened" in alarm.message
    assert sinks.write(1, {}) == []


def test_names_of_metrics_are_written_as_mlflow_takes_them() -> None:
    found = [mlflow_name(name) for name in ("eval/pass@1", "eval/maj@k", "reward/part/a:b", "loss-x_y.z w/1")]
    assert found == ["eval/pass_at_1", "eval/maj_at_k", "reward/part/a_b", "loss-x_y.z w/1"]


@pytest.mark.parametrize(("failed", "status"), [(False, "FINISHED"), (True, "FAILED")])
def test_mlflow_gets_a_step_at_once_and_how_the_run_ended(
    failed: bool, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Mock(**{"get_experiment_by_name.return_value": None, "create_run.return_value.info.run_id": "r"})
    modules = {
        "mlflow": {"__spec__": ModuleSpec("mlflow", None)},
        "mlflow.tracking": {"MlflowClient": lambda *given, **named: client},
        "mlflow.entities": {"Metric": lambda name, value, timestamp, step: (name, value, step)},
    }
    for name, content in modules.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))  # type: ignore[arg-type]
    sinks = build_sinks(["mlflow"], tmp_path)
    sinks.write(1, {"eval/pass@1": 0.5, "a": 2.0})
    assert sinks.close(failed=failed) == []
    asked = [(name, *given, *named.values()) for name, given, named in client.mock_calls]
    assert asked[-3:] == [
        ("update_run", "r", "RUNNING"),
        ("log_batch", "r", [("a", 2.0, 1), ("eval/pass_at_1", 0.5, 1)]),
        ("set_terminated", "r", status),
    ]


def test_a_resumed_run_goes_on_under_its_name_in_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Mock()
    module = SimpleNamespace(init=init, __spec__=ModuleSpec("trackio", None))
    monkeypatch.setitem(sys.modules, "trackio", module)  # type: ignore[arg-type]
    for step in (1, 2):
        sinks = build_sinks(["trackio"], tmp_path, project="p", config={"seed": 3}, resume_step=step - 1)
        sinks.write(step, {"reward/mean": 0.5})
        assert sinks.close() == []
    first, second = (one.kwargs for one in init.call_args_list)
    assert first == second
    assert (first["project"], first["config"], first["resume"]) == ("p", {"seed": 3}, "allow")
    assert first["name"].startswith(f"{tmp_path.name}-")
    row, run = {"reward/mean": 0.5}, init.return_value
    assert run.log.call_args_list == [call(row, step=1), call(row, step=2)]
    assert run.finish.call_count == 2
