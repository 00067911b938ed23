"""Sinks of metrics: always metrics.jsonl, TensorBoard by default, and optionally Weights & Biases, MLflow, Trackio and
the user's own classes."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from burnish.config.names import SINK_NAMES
from burnish.errors import BurnishError, ConfigError, DataError, DivergenceError
from burnish.observability.alarms import Alarm
from burnish.observability.atomic import disk_errors, fsync, write_text_atomically
from burnish.observability.history import read_rows
from burnish.outside.plugins import construct, describe_failure, find_class
from burnish.types import Json

METRICS_FILE = "metrics.jsonl"
_FIELD = "logging.sinks"


class MetricSink(Protocol):
    """Receives one row of metrics per step.

    A user's class (`logging.sinks: package.module:Class`) is constructed as `Class(run_dir, project=..., config=...,
    resume_step=...)`: the folder of the run, `logging.project`, the resolved run file as plain values, and the step of
    the checkpoint that the run resumes from (None for a new run). Rows after that step are sent again.
    """

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Log the metrics of one step."""

    def close(self) -> None:
        """Write out buffered data and release resources."""


class JsonlSink:
    """`metrics.jsonl`: one line per step, on disk before `write` returns, so that a killed run keeps it.

    `step` comes first and the other keys are sorted. Floats are written so that reading gives the same value. With
    `resume_step` k, later lines and a torn last line are removed first, so that no step appears twice. All lines up to
    k must exist, except that the first ones may be missing; `missing` is their number.
    """

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        """Open the file. DataError if it is damaged or lacks a line, and BurnishError if it cannot be written."""
        self._path = path
        kept = [] if resume_step is None else _rows_until(path, resume_step)
        self._last_step = int(kept[-1]["step"]) if kept else -1
        self.missing = max(0, int(kept[0]["step"]) - 1) if kept else resume_step or 0
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, "".join(_line(int(row["step"]), row) for row in kept))
            self._descriptor, self._size = _open_to_append(path)
            fsync(path.parent)

    def _writing(self) -> AbstractContextManager[None]:
        return disk_errors(f"write {self._path}", self._path.parent)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append a line. Raises DivergenceError for a value that is not finite, and ValueError for a step out of order.

        If writing fails, the partial line is removed, so that a line is either complete or absent.
        """
        if step <= self._last_step:
            raise ValueError(f"step {step} comes after step {self._last_step} was written to {self._path}")
        _refuse_non_finite(step, row)
        line = _line(step, row).encode()
        with self._writing():
            try:
                # A single `write`, because only a full disk makes it short, and then the line can be cut off again.
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise
        self._size += len(line)
        self._last_step = step

    def reattach(self) -> str:
        """Restore the file if it was removed or moved away. Call this before `write`.

        Returns a message if it was restored (with all its lines), else an empty string. Raises BurnishError if someone
        else has changed the file.
        """
        with self._writing():
            ours, there = os.fstat(self._descriptor), _stat(self._path)
            content = b"" if there is not None else os.pread(self._descriptor, ours.st_size, 0)
            if there is None and len(content) == self._size:
                write_text_atomically(self._path, content.decode())
                os.close(self._descriptor)
                self._descriptor, self._size = _open_to_append(self._path)
                return f"{self._path} was removed during the run and has been restored with all its lines"
        if there is not None and (ours.st_dev, ours.st_ino, self._size) == (there.st_dev, there.st_ino, there.st_size):
            return ""
        raise BurnishError(
            f"{self._path} was changed or replaced while the run was writing to it",
            remedy="find out what else writes there, restore the file (one line per step), and start again: it resumes",
        )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class TensorBoardSink:
    """Event files in `tensorboard/`. After a resume, points of later steps are hidden."""

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Without a checkpoint the run begins anew, without the points that a killed one wrote here.
        purge_step = 0 if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)  # type: ignore[no-untyped-call]

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in sorted(row.items()):
            self._writer.add_scalar(name, value, global_step=step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]


class WandbSink:
    """Weights & Biases. A resumed run continues the same page (its id is kept in `wandb_run_id.txt`). Before it is
    closed, `failed` says whether the run has failed."""

    failed = False

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Json]) -> None:
        import wandb

        identity = _kept_identity(run_dir / "wandb_run_id.txt", lambda: secrets.token_hex(8))
        self._run = wandb.init(
            project=project, id=identity, name=run_dir.name, dir=str(run_dir), resume="allow", config=dict(config)
        )
        # A resumed run repeats steps, and W&B drops rows below its own step counter. So the step is logged as a value.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log({"step": step, **row})

    def close(self) -> None:
        self._run.finish(exit_code=int(self.failed))


class MlflowSink:
    """MLflow, tracked at MLFLOW_TRACKING_URI (default `mlruns`). A resumed run continues the same MLflow run.
    Before it is closed, `failed` says whether the run has failed."""

    failed = False

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Json]) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        self._run_id = _kept_identity(run_dir / "mlflow_run_id.txt", lambda: self._create(project, run_dir, config))
        self._client.update_run(self._run_id, status="RUNNING")  # a resumed run had been marked as ended

    def write(self, step: int, row: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(mlflow_name(name), value, now, step) for name, value in sorted(row.items())]
        self._client.log_batch(self._run_id, metrics=metrics)  # a single request: each may take tens of milliseconds

    def close(self) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if self.failed else "FINISHED")

    def _create(self, project: str, run_dir: Path, config: Mapping[str, Json]) -> str:
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = self._client.create_experiment(project) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        for section, value in config.items():
            self._client.log_param(run_id, section, json.dumps(value, sort_keys=True, default=str)[:500])
        return run_id


class TrackioSink:
    """Trackio, which keeps its data on this machine unless its own settings say otherwise. A resumed run continues the
    same page: its name, which tells it from others of the project, is kept in `trackio_run_name.txt`."""

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Json]) -> None:
        import trackio

        name = _kept_identity(run_dir / "trackio_run_name.txt", lambda: f"{run_dir.name}-{secrets.token_hex(3)}")
        self._run = trackio.init(project=project, name=name, config=dict(config), resume="allow", embed=False)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step)

    def close(self) -> None:
        self._run.finish()


def mlflow_name(name: str) -> str:
    """Convert a metric's name for MLflow, which refuses most symbols: `eval/pass@1` becomes `eval/pass_at_1`."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"))


class Sinks:
    """`metrics.jsonl`, which a run needs, and further sinks, which are optional.

    If a further sink raises any error when it is built, written to or closed, it is dropped with an alarm, and the run
    continues.
    """

    def __init__(
        self, open_file: Callable[[], JsonlSink], further: Mapping[str, Callable[[], MetricSink]], *, step: int = 0
    ) -> None:
        """`further`: name -> function that builds the sink. `step`: the last step whose row is already written."""
        self._further: dict[str, MetricSink] = {}
        self.alarms: list[Alarm] = []
        """Failures while the sinks were built."""
        for name, build in further.items():
            with self._dropping(name, "was opened", step, self.alarms):
                self._further[name] = build()
        self._file = open_file()  # last, so that a ConfigError from a sink leaves the file untouched
        if lost := self._file.missing:
            message = f"{METRICS_FILE} lacks its first {lost} steps, so the file or part of it was removed"
            knob = "restore it before you continue, if you want complete curves"
            self.alarms.append(Alarm("metrics missing", message, knob, step))

    def write(self, step: int, row: Mapping[str, float]) -> list[Alarm]:
        """Write one row to all sinks. Errors of `JsonlSink` pass through; then nothing was written."""
        found: list[Alarm] = []
        restored = self._file.reattach()
        if restored:
            found.append(Alarm("metrics file removed", restored, "find out what else removes files there", step))
        self._file.write(step, row)
        for name, sink in list(self._further.items()):
            with self._dropping(name, f"wrote step {step}", step, found):
                sink.write(step, row)
        return found

    def close(self, *, failed: bool = False) -> list[Alarm]:
        """Close all sinks. `failed`: an error ends the run."""
        found: list[Alarm] = []
        self._file.close()
        for name, sink in list(self._further.items()):
            with self._dropping(name, "was closed", 0, found):
                if isinstance(sink, WandbSink | MlflowSink):
                    sink.failed = failed
                sink.close()
        return found

    @contextmanager
    def _dropping(self, name: str, doing: str, step: int, alarms: list[Alarm]) -> Iterator[None]:
        try:
            yield
        except ConfigError:  # a wrong name or a missing package is refused before training begins
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  boundary: a sink may raise anything, training goes on
            self._further.pop(name, None)
            message = f"the sink {name} failed while it {doing} and gets no more metrics: {describe_failure(error)}"
            knob = f"fix it, or remove it from {_FIELD}; {METRICS_FILE} has all metrics"
            alarms.append(Alarm("sink dropped", message, knob, step))


def build_sinks(
    names: Sequence[str],
    run_dir: Path,
    *,
    project: str = "burnish",
    config: Mapping[str, Json] | None = None,
    resume_step: int | None = None,
) -> Sinks:
    """Build metrics.jsonl and the named sinks (tensorboard, wandb, mlflow, trackio, `package.module:Class`).

    `resume_step` is the step of the checkpoint that the run resumes from (None starts new files). `config` is the
    resolved run file as plain values, shown by the services. Raises ConfigError if a package is not installed, or a
    class does not exist or is not a sink, and DataError if existing lines are damaged.
    """
    find_sinks(names)
    values = dict(config or {})
    builders: dict[str, Callable[[], MetricSink]] = {
        "tensorboard": lambda: TensorBoardSink(run_dir / "tensorboard", resume_step=resume_step),
        "wandb": lambda: WandbSink(run_dir, project=project, config=values),
        "mlflow": lambda: MlflowSink(run_dir, project=project, config=values),
        "trackio": lambda: TrackioSink(run_dir, project=project, config=values),
    }

    def build(name: str) -> MetricSink:
        if name in builders:
            try:
                return builders[name]()
            except ImportError as error:
                raise _missing_package(name) from error
        arguments = {"project": project, "config": values, "resume_step": resume_step}
        return construct(_sink_class(name), name, run_dir, arguments, field=_FIELD, first_name="run_dir")

    further = {name: partial(build, name) for name in names}
    open_file = partial(JsonlSink, run_dir / METRICS_FILE, resume_step=resume_step)
    return Sinks(open_file, further, step=resume_step or 0)


def find_sinks(names: Sequence[str]) -> None:
    """Raise ConfigError for a name that is neither a built-in sink with its package installed, nor a class with the
    methods of a sink."""
    for name in names:
        if name in SINK_NAMES:
            if importlib.util.find_spec(name) is None:  # the package has the same name as the sink
                raise _missing_package(name)
            continue
        if ":" not in name:
            known = f"{', '.join(SINK_NAMES)} and package.module:Class (or path/to/file.py:Class)"
            raise ConfigError(f"{_FIELD}: {name!r} is not a sink", remedy=f"choose from {known}")
        _sink_class(name)


def _sink_class(name: str) -> type:
    protocol = "burnish.observability.sinks.MetricSink"
    return find_class(name, field=_FIELD, methods=("write", "close"), protocol=protocol)


def _line(step: int, row: Mapping[str, float]) -> str:
    rest = {name: row[name] for name in sorted(row) if name != "step"}
    return json.dumps({"step": step, **rest}, allow_nan=False) + "\n"


def _rows_until(path: Path, last_step: int) -> list[dict[str, float]]:
    """Read the rows up to a step. DataError if one between the first and that step is missing."""
    kept = [row for row in read_rows(path) if row["step"] <= last_step]
    there = {int(row["step"]) for row in kept}
    lost = [step for step in range(min(there, default=last_step + 1), last_step + 1) if step not in there]
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise DataError(
            f"{path} lacks the line of step {lost[0]}{more}, although the run has completed that step",
            remedy="restore it, or move the file away: then the run continues with a new one, without earlier steps",
        )
    return kept


def _open_to_append(path: Path) -> tuple[int, int]:
    """Open an existing file to append; returns its descriptor and size."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    return descriptor, os.fstat(descriptor).st_size


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _refuse_non_finite(step: int, row: Mapping[str, float]) -> None:
    bad = [f"{name} = {value}" for name, value in sorted(row.items()) if not math.isfinite(value)]
    if bad:
        raise DivergenceError(
            f"step {step}: metrics that are not finite: {', '.join(bad)}",
            remedy="lower optimization.learning_rate or set optimization.max_grad_norm; look at the last rollouts",
        )


def _kept_identity(path: Path, create: Callable[[], str]) -> str:
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    identity = create()
    write_text_atomically(path, identity + "\n")
    return identity


def _missing_package(name: str) -> ConfigError:
    command = "pip install tensorboard" if name == "tensorboard" else f"pip install 'burnish[{name}]'"
    return ConfigError(
        f"logging.sinks names {name}, but the package {name} is not installed",
        remedy=f"{command}, or remove {name} from logging.sinks",
    )
