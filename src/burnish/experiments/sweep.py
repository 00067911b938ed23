"""Many runs that differ in a few settings, each an ordinary `burnish` command in its own process.

All run files are checked before the first run starts. A run that fails does not end the others. The folder of a run is
named after its settings, so the same sweep again skips what is finished and continues the rest.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from burnish.api.inputs import plain
from burnish.api.preparing import Given, as_overrides, kind_of
from burnish.checkpointing.run import RunDirectory, refused_differences
from burnish.checkpointing.sources import check_output
from burnish.config.loading import LoadedConfig, load_run_file
from burnish.config.schema import RunConfig
from burnish.config.yaml_text import dump_yaml
from burnish.errors import CheckpointError, ConfigError
from burnish.experiments.settings import OUTPUT, Setting, settings_of
from burnish.machine.resources import gpu_shares, visible_gpus
from burnish.observability.atomic import disk_errors
from burnish.observability.console import duration
from burnish.observability.control import read_ending
from burnish.outside.supervise import Child, end_with_parent, start
from burnish.trainers.chaining import pinned
from burnish.trainers.interrupt import StopRequest, graceful_stop

LOG_FILE = "console.log"
"""In the folder of a run: what its command printed."""
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 10.0
_TAIL_BYTES = 20_000

Load = Callable[[Sequence[str]], LoadedConfig]
"""Loads the run file with these overrides, as a run of its kind."""
Say = Callable[[str], None]
State = Literal["waiting", "skipped", "running", "finished", "stopped", "failed"]


@dataclass(slots=True)
class SweptRun:
    """A run of a sweep. `state` is `skipped` if it was finished before; `error` is what a failed one said last."""

    name: str
    folder: Path
    overrides: tuple[str, ...]
    config: RunConfig
    state: State = "waiting"
    error: str = ""

    @property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    def is_finished(self) -> bool:
        """Return whether its folder holds this run, trained to its end. If a run that it takes a model from is gone,
        its command has to say so."""
        directory = RunDirectory(self.folder)
        if not directory.begun() or read_ending(self.folder) is None:
            return False
        try:
            config, _ = pinned(self.config)
        except CheckpointError:
            return False
        before, now = directory.read_config(), config.model_dump(mode="json")
        same_end = all(before.get(name) == now.get(name) for name in ("steps", "stop_when"))
        return same_end and not refused_differences(before, config)


def sweep(
    config: Given,
    settings: Mapping[str, Sequence[object]] | Sequence[Mapping[str, object]],
    *,
    jobs: int = 1,
    quiet: bool = False,
    **fields: object,
) -> list[SweptRun]:
    """Train a run for each combination of settings, as `burnish sweep` does, and return the runs.

    `config` is a run file or its fields, and `fields` override it. `settings` has the values of each field,
    `{"algorithm": ["grpo", "rloo"], "seed": range(5)}`, or is a list with the fields of each run. `output` is the
    folder of the sweep, which gets a folder for each run. `jobs` runs train at a time.

    A failed run does not end the sweep: its `state` is `failed`, and `error` says why. Ctrl-C lets the present runs
    finish their step and save. Raises BurnishError for settings that cannot be used, before the first run starts.
    """
    if isinstance(settings, Mapping):
        words = [f"{key}={','.join(_as_words(key, values))}" for key, values in settings.items()]
        chosen = settings_of(words)
    else:
        chosen = settings_of((), settings)
    with _as_file(config) as file:
        kind, fixed = kind_of(config, fields), as_overrides(fields)
        runs = checked_runs(lambda words: load_run_file(file, words, kind), chosen, fixed)
        train_all(runs, str(file), jobs=jobs, say=(lambda text: None) if quiet else _print)
    return runs


def _as_words(key: str, values: Sequence[object]) -> list[str]:
    if isinstance(values, (str, bytes)):
        raise ConfigError(f"the values of {key} are a text, {values!r:.80}", remedy="give a list of values")
    return [word.partition("=")[2] for value in values for word in as_overrides({key: value})]


@contextmanager
def _as_file(config: Given) -> Iterator[str | Path]:
    """The path of the run file, which other processes can read. A file for this call if the fields are in memory."""
    if isinstance(config, (str, Path)):
        yield config
        return
    data = config.model_dump(mode="json", exclude_unset=True) if isinstance(config, RunConfig) else plain(config)
    try:
        text = dump_yaml(data)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"burnish.sweep trains in other processes, which cannot have this: {error.args[-1]!r:.80}",
            remedy="write rows, models and functions to files, and name these",
        ) from error
    with tempfile.TemporaryDirectory(prefix="burnish-sweep-") as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(text, encoding="utf-8")
        yield file


def checked_runs(load: Load, chosen: Sequence[Setting], fixed: Sequence[str] = ()) -> list[SweptRun]:
    """Load and check the configuration of every run. ConfigError about all that cannot be used, and for a folder of the
    sweep that is a run itself. `fixed`: overrides of all runs; `output` is the folder of the sweep."""
    common = [word for word in fixed if word.partition("=")[0] != OUTPUT]
    output = [word for word in fixed if word not in common]
    place: Path | None = None
    runs: list[SweptRun] = []
    wrong: list[str] = []
    for setting in chosen:
        words = (*common, *setting.overrides)
        try:
            place = place or _place(load([*words, *output]).config)
            config = load([*words, f"output={place / setting.name}"]).config
            check_output(config)
            runs.append(SweptRun(setting.name, place / setting.name, words, config))
        except ConfigError as error:
            wrong.append(f"{setting.name}: {error}")
    if wrong:
        message = f"{len(wrong)} of the {len(chosen)} runs cannot start, so none does:\n" + "\n".join(wrong)
        raise ConfigError(message)
    for run in runs:
        run.state = "skipped" if run.is_finished() else "waiting"
    return runs


def _place(config: RunConfig) -> Path:
    """The folder of the sweep. ConfigError if it is the folder of a run."""
    if RunDirectory(Path(config.output)).begun():
        raise ConfigError(
            f"output {config.output!r} is the folder of a run",
            remedy="name another one for the sweep: output=runs/sweep",
        )
    return Path(config.output)


def train_all(runs: Sequence[SweptRun], file: str, *, jobs: int, say: Say) -> None:
    """Train all runs that are not finished, `jobs` at a time, and record in each what became of it.

    The first Ctrl-C, or a signal of a scheduler, is passed on: each run finishes its step and saves. After a second one
    they are ended.
    """
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}", remedy="let one run train at a time, or more")
    waiting = [run for run in runs if run.state == "waiting"]
    skipped = len(runs) - len(waiting)
    say(f"{len(runs)} runs" + (f", {skipped} of them finished already" if skipped else ""))
    running: list[_Training] = []
    free = gpu_shares(jobs, visible_gpus() if jobs > 1 else 0)
    with graceful_stop(say) as stop:
        try:
            while (waiting and not stop) or running:
                while waiting and free and not stop:
                    running.append(_Training.begin(waiting.pop(0), file, say, free.pop(0)))
                for training in running:
                    training.look(stop)
                free += [training.gpus for training in running if training.run.state != "running"]
                running = [training for training in running if training.run.state == "running"]
                time.sleep(_LOOK_SECONDS if running else 0)
        finally:
            for training in running:  # a second Ctrl-C, or an error here
                training.end()


@dataclass(slots=True)
class _Training:
    """The process of a run that is under way. `gpus`: its CUDA_VISIBLE_DEVICES, None for those of the sweep."""

    run: SweptRun
    child: Child
    say: Say
    gpus: str | None
    log_start: int
    began: float
    told_to_stop: bool = False

    @staticmethod
    def begin(run: SweptRun, file: str, say: Say, gpus: str | None) -> _Training:
        command = [sys.executable, "-m", "burnish", run.config.kind, file, *run.overrides, f"output={run.folder}"]
        environment = None if gpus is None else {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}
        with disk_errors(f"start {run.name}", run.folder):
            run.folder.mkdir(parents=True, exist_ok=True)
            with run.log.open("ab") as log:
                size = log.tell()
                child = start(command, stdout=log, stderr=log, environment=environment, first=end_with_parent)
        run.state = "running"
        say(f"started   {run.name}  ({run.log})" + ("" if gpus is None else f" on GPU {gpus}"))
        return _Training(run, child, say, gpus, size, time.monotonic())

    def look(self, stop: StopRequest) -> None:
        """Pass a request to stop on, once, and note how the process has ended, if it has."""
        if stop and not self.told_to_stop:
            self.told_to_stop = True
            self.child.tell(signal.SIGINT)
        status = self.child.status()
        if status is not None:
            self.child.end()  # whatever it may have left in its group
            self._conclude(status)

    def end(self) -> None:
        """End the process: as a second Ctrl-C would, and if that takes too long at once."""
        self.child.tell(signal.SIGINT)
        self.child.end(_PATIENCE_SECONDS)
        self.run.state = "stopped"

    def _conclude(self, status: int) -> None:
        run = self.run
        if status == 0:
            run.state = "finished" if read_ending(run.folder) is not None else "stopped"
        elif self.told_to_stop and status in (-signal.SIGINT, 128 + signal.SIGINT):
            run.state = "stopped"
        else:
            run.state, run.error = "failed", last_error(run.log, self.log_start, status)
        self.say(f"{run.state:9} {run.name}  {duration(time.monotonic() - self.began)}  {run.error}".rstrip())


def last_error(log: Path, begin: int, status: int) -> str:
    """The message with which a command ended: the line `error: ...` and the indented ones below it, or else the last
    that it printed from `begin` on."""
    with log.open("rb") as file:
        file.seek(max(begin, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    start = max((place for place, line in enumerate(lines) if line.startswith("error: ")), default=len(lines) - 1)
    more = itertools.takewhile(lambda line: line.startswith("  "), lines[start + 1 :])
    found = " ".join(line.strip() for line in [*lines[start : start + 1], *more])
    return found.removeprefix("error: ") or f"exit status {status}"


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, markup=False, highlight=False, soft_wrap=True)
