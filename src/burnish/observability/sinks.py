"""Where the metric rows go: metrics.jsonl always, TensorBoard by default, Weights & Biases, MLflow and classes of the
user's own as extras."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from burnish.config.names import SINK_NAMES
from burnish.errors import BurnishError, ConfigError, DivergenceError
from burnish.observability.atomic import disk_remedy, fsync_folder, write_text_atomically
from burnish.observability.history import read_rows
from burnish.outside import construct, find_class

METRICS_FILE = "metrics.jsonl"
_FIELD = "logging.sinks"


class MetricSink(Protocol):
    """Takes one row a step.

    A class of the user's own (`logging.sinks: package.module:Class`) is built as `Class(run_dir, project=...,
    config=..., resume_step=...)`: folder of the run, `logging.project`, the resolved run file as plain values, and the
    step of the checkpoint that the run goes on from (None for a new run). Rows after that step come once more.
    """

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Log the numbers of one step."""
        ...

    def close(self) -> None:
        """Write out what is buffered and let go."""
        ...


class JsonlSink:
    """`metrics.jsonl`: one line a step, on disk before `write` returns, so that a killed run keeps it.

    Keys are sorted after `step`, floats written so that they read back exactly. Opened with `resume_step` k, lines of
    later steps (and a line that a kill cut short) are removed first, so that no step is ever there twice.
    """

    def __init__(self, path: Path, *, resume_step: int | None = None) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = [] if resume_step is None else [row for row in read_rows(path) if row["step"] <= resume_step]
            write_text_atomically(path, "".join(_line(row["step"], row) for row in kept))
            self._file = path.open("a", encoding="utf-8")
            fsync_folder(path.parent)
        except OSError as error:
            raise _write_error(path, error) from error
        self._last_step = kept[-1]["step"] if kept else -1

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append a line. Raises DivergenceError for a number that is not finite, ValueError for a step out of order."""
        if step <= self._last_step:
            raise ValueError(f"step {step} comes after step {self._last_step} was written to {self._path}")
        _refuse_non_finite(step, row)
        try:
            self._file.write(_line(step, row))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _write_error(self._path, error) from error
        self._last_step = step

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Event files under `tensorboard/`; on resume, points of later steps are hidden."""

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing_package("tensorboard") from error
        purge_step = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)  # type: ignore[no-untyped-call]

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in sorted(row.items()):
            self._writer.add_scalar(name, value, global_step=step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]


class WandbSink:
    """Weights & Biases. A resumed run continues the same page (its id is kept in `wandb_run_id.txt`)."""

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing_package("wandb") from error
        identity = _kept_identity(run_dir / "wandb_run_id.txt", lambda: secrets.token_hex(8))
        self._run = wandb.init(
            project=project, id=identity, name=run_dir.name, dir=str(run_dir), resume="allow", config=dict(config)
        )
        # A resumed run repeats steps; W&B drops rows below its own counter, so the step travels as a value.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log({"step": step, **row})

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """MLflow, at the place that MLFLOW_TRACKING_URI names (else `mlruns`). A resumed run continues the same record."""

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any]) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise _missing_package("mlflow") from error
        self._client = MlflowClient()
        self._run_id = _kept_identity(run_dir / "mlflow_run_id.txt", lambda: self._create(project, run_dir, config))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in sorted(row.items()):
            self._client.log_metric(self._run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)

    def _create(self, project: str, run_dir: Path, config: Mapping[str, Any]) -> str:
        experiment = self._client.get_experiment_by_name(project)
        experiment_id = self._client.create_experiment(project) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(experiment_id, run_name=run_dir.name).info.run_id
        for section, value in config.items():
            self._client.log_param(run_id, section, json.dumps(value, sort_keys=True, default=str)[:500])
        return run_id


@dataclass(frozen=True, slots=True)
class Sinks:
    """Several sinks behind one."""

    members: tuple[MetricSink, ...]

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for sink in self.members:
            sink.write(step, row)

    def close(self) -> None:
        for sink in self.members:
            sink.close()


def build_sinks(
    names: Sequence[str],
    run_dir: Path,
    *,
    project: str = "burnish",
    config: Mapping[str, Any] | None = None,
    resume_step: int | None = None,
) -> Sinks:
    """metrics.jsonl and the named sinks (tensorboard, wandb, mlflow, `package.module:Class`).

    `resume_step` is the step of the checkpoint that the run continues from (None starts new files); `config` is the
    resolved run file as plain values, shown by the services. Raises ConfigError when a package is not installed, or
    when there is no such class or it is no sink.
    """
    find_sinks(names)
    values = dict(config or {})
    builders: dict[str, Callable[[], MetricSink]] = {
        "tensorboard": lambda: TensorBoardSink(run_dir / "tensorboard", resume_step=resume_step),
        "wandb": lambda: WandbSink(run_dir, project=project, config=values),
        "mlflow": lambda: MlflowSink(run_dir, project=project, config=values),
    }

    def outside(name: str) -> MetricSink:
        arguments = {"project": project, "config": values, "resume_step": resume_step}
        sink: MetricSink = construct(_sink_class(name), name, run_dir, arguments, field=_FIELD, first_name="run_dir")
        return sink

    # before the file: a missing package touches nothing
    further = [builders[name]() if name in builders else outside(name) for name in dict.fromkeys(names)]
    return Sinks((JsonlSink(run_dir / METRICS_FILE, resume_step=resume_step), *further))


def find_sinks(names: Sequence[str]) -> None:
    """Raises ConfigError for a name that is neither a sink of Burnish's whose package is installed nor a class with
    the methods of one."""
    for name in names:
        if name in SINK_NAMES:
            if importlib.util.find_spec(name) is None:  # the package is called like the sink
                raise _missing_package(name)
            continue
        if ":" not in name:
            known = f"{', '.join(SINK_NAMES)} and package.module:Class (or path/to/file.py:Class)"
            raise ConfigError(f"{_FIELD}: {name!r} is no sink", remedy=f"choose among {known}")
        _sink_class(name)


def _sink_class(name: str) -> type:
    protocol = "burnish.observability.sinks.MetricSink"
    return find_class(name, field=_FIELD, methods=("write", "close"), protocol=protocol)


def _line(step: int, row: Mapping[str, float]) -> str:
    rest = {name: row[name] for name in sorted(row) if name != "step"}
    return json.dumps({"step": step, **rest}, allow_nan=False) + "\n"


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
        remedy=f"{command}, or take {name} out of logging.sinks",
    )


def _write_error(path: Path, error: OSError) -> BurnishError:
    return BurnishError(f"cannot write {path}: {error.strerror}", remedy=disk_remedy(error, path.parent))
