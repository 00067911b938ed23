"""The runs in the given folders, and the state of each, from their files alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from burnish.board.configuration import Configuration, read_configuration
from burnish.board.index import RolloutIndex
from burnish.board.tables import MetricTable
from burnish.config.kinds import USUAL
from burnish.config.loading import kind_of_data
from burnish.errors import BurnishError, CheckpointError, ConfigError
from burnish.observability.control import Request, asked, read_ending
from burnish.observability.sinks import METRICS_FILE
from burnish.outside.reading import UnreadableError, folder_problem, read_json, reading
from burnish.outside.supervise import is_alive
from burnish.types import Json

State = Literal["running", "paused", "silent", "crashed", "stopped", "finished"]
"""`silent`: says that it runs on another machine, and has not written for long. `crashed`: its process is gone, but has
not released the folder."""
_CONFIG_FILE, _LOCK_FILE, _ENVIRONMENT_FILE = "config.yaml", "run.lock", "environment.json"
_READ = (METRICS_FILE, _CONFIG_FILE, _LOCK_FILE, _ENVIRONMENT_FILE)
_DEPTH = 4
_PASSED_OVER = {"checkpoints", "rollouts", "tensorboard", "board", "control", "data", "model"}
_SILENT_STEPS, _SILENT_SECONDS = 20, 600.0
_RECENT = 20
"""Steps whose mean time estimates the time left."""
_SAME_FAMILY = ("seed", "output", "logging.", "evaluation.", "checkpoint.", "cluster.", "debug.")
"""Fields in which runs of one family may differ: they are one experiment with several seeds."""
_ALGORITHM = ("algorithm.estimator", "algorithm.loss", "losses.0.name", "divergence")
"""Fields that name the algorithm of a run without a preset."""
_HEADLINES = [
    "reward/mean",
    "eval/accuracy",
    "eval/reward_mean",
    "train/loss",
    "eval/loss",
    "kl/reference",
    "conversation/turns_mean",
    "rollout/response_tokens_mean",
]


class RunSummary(TypedDict):
    """A run in a list. `changed` is in seconds since 1970, `left` and `spent` in seconds; None where nothing is known.
    values: the first and the latest one of the metrics that matter most.
    read: the share of its metrics that was read so far, since a long file takes seconds at first."""

    name: str
    state: State
    step: int
    total: int | None
    rows: int
    read: float
    generation: int
    changed: float
    left: float | None
    spent: float
    alarms: int
    problem: str
    asked: list[Request]
    values: dict[str, tuple[float, float]]


class RunHead(TypedDict):
    """Facts about a run that do not change while it trains. forked_from, forked_at: folder and step of the run that it
    was forked from; empty and 0 for others."""

    folder: str
    kind: str
    algorithm: str
    model: str
    data: str
    began: str
    forked_from: str
    forked_at: int
    family: str


@dataclass(slots=True)
class WatchedRun:
    """A run's folder, with what was read of it so far."""

    name: str
    folder: Path
    table: MetricTable
    index: RolloutIndex
    _configuration: tuple[int, Configuration] | None = None

    @staticmethod
    def at(name: str, folder: Path) -> WatchedRun:
        """Make the run of this folder, with nothing read yet."""
        return WatchedRun(name, folder, MetricTable(folder / METRICS_FILE), RolloutIndex(folder))

    def refresh(self, until: float = math.inf) -> bool:
        """Read new rows of metrics (see `MetricTable.refresh`), and return whether there were any."""
        try:
            return self.table.refresh(until)
        except OSError as error:
            self.table.problem = f"{METRICS_FILE} cannot be read: {error.strerror}"
            return False

    def configuration(self) -> Configuration:
        """Return the configuration, read anew if its file has changed. BurnishError if it cannot be read."""
        changed = _written(self.folder / _CONFIG_FILE)
        if self._configuration is None or self._configuration[0] != changed:
            with reading(f"{self.folder / _CONFIG_FILE}: reading the configuration"):
                self._configuration = changed, read_configuration(self.folder, self.name)
        return self._configuration[1]

    def summary(self, now: float) -> RunSummary:
        """Return the run's row in the list. `now`: seconds since 1970."""
        table, total = self.table, self.total_steps()
        step = table.steps[-1] if table.steps else 0
        requests = asked(self.folder)
        state = self._state(step, total, now, paused="pause" in requests)
        return {
            "name": self.name,
            "state": state,
            "step": step,
            "total": total,
            "rows": len(table.steps),
            "read": round(table.share_read(), 2),
            "generation": table.generation,
            "changed": table.changed,
            "left": self._left(step, total) if state in ("running", "paused") else None,
            "alarms": len(table.alarms),
            "problem": table.problem,
            "asked": requests,
            "spent": table.seconds[-1] if table.seconds else 0.0,
            "values": {name: ends for name in _HEADLINES if (ends := table.ends(name)) is not None},
        }

    def total_steps(self) -> int | None:
        """Return `steps` of the run file; None if the run's length follows from its data."""
        steps = self._readable().values.get("steps")
        return steps if type(steps) is int else None

    def _readable(self) -> Configuration:
        """The configuration, without fields if it cannot be read."""
        try:
            return self.configuration()
        except BurnishError:
            return Configuration(self.name, None, {}, {}, None)

    def head(self) -> RunHead:
        """Return what the page's head says. Empty texts where a file is missing or damaged."""
        configuration = self._readable()
        data, values = configuration.data, configuration.values
        alike = {path: value for path, value in values.items() if not path.startswith(_SAME_FAMILY)}
        family = hashlib.sha1(json.dumps(alike, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
        parts = (values.get(path) for path in _ALGORITHM)
        named = values.get("algorithm.preset") or " · ".join(str(part) for part in parts if part)
        train = [str(value) for path, value in values.items() if _names_training_data(path) and value]
        began, forked_from, forked_at = _origin(self.folder / _ENVIRONMENT_FILE)
        return {
            "folder": str(self.folder),
            "kind": kind_of_data(dict(data)) if data else USUAL if self.index.files() else "",
            "algorithm": str(named),
            "model": str(values.get("model.path") or ""),
            "data": ", ".join(dict.fromkeys(train)),
            "began": began,
            "forked_from": forked_from,
            "forked_at": forked_at,
            "family": family if alike else "",
        }

    def _state(self, step: int, total: int | None, now: float, *, paused: bool) -> State:
        holder = _holder(self.folder / _LOCK_FILE)
        if not holder:
            return "finished" if self._has_ended() or (total is not None and step >= total) else "stopped"
        pid, table = holder.get("pid"), self.table
        if holder.get("host") == socket.gethostname():
            alive = type(pid) is int and is_alive(pid)
            return ("paused" if paused else "running") if alive else "crashed"
        patience = max(_SILENT_SECONDS, _SILENT_STEPS * (self._step_seconds() or 0.0))
        return "silent" if now - table.changed > patience else "paused" if paused else "running"

    def _has_ended(self) -> bool:
        try:
            return read_ending(self.folder) is not None
        except CheckpointError:  # a damaged file must not take a run from the list
            return False

    def _step_seconds(self) -> float | None:
        seconds, steps = self.table.seconds[-_RECENT - 1 :], self.table.steps[-_RECENT - 1 :]
        made = steps[-1] - steps[0] if steps else 0
        return (seconds[-1] - seconds[0]) / made if made else None

    def _left(self, step: int, total: int | None) -> float | None:
        seconds = self._step_seconds()
        return None if total is None or seconds is None else max(0, total - step) * seconds


@dataclass(slots=True)
class Runs:
    """Runs below some folders, found anew whenever `scan` is called."""

    roots: tuple[Path, ...]
    by_name: dict[str, WatchedRun] = field(default_factory=dict)

    @staticmethod
    def below(folders: Sequence[str]) -> Runs:
        """Find the runs below these folders. ConfigError if one of them is not a folder."""
        for folder in folders:
            if problem := folder_problem(Path(folder)):
                raise ConfigError(f"{folder!r} {problem}", remedy="name folders of runs, or folders that hold some")
        runs = Runs(tuple(dict.fromkeys(Path(folder).resolve() for folder in folders)))
        runs.scan()
        return runs

    def scan(self) -> None:
        """Find new runs, and forget those whose folder is gone."""
        found = {folder: name for name, folder in self._named()}
        known = {run.folder: run for run in self.by_name.values()}
        self.by_name = {name: known.get(folder) or WatchedRun.at(name, folder) for folder, name in found.items()}

    def refresh(self, seconds: float = math.inf) -> list[WatchedRun]:
        """Read what is new of every run, the one that was written last first, for about so long; return those that have
        changed."""
        until = time.monotonic() + seconds
        newest = sorted(self.by_name.values(), key=lambda run: -_written(run.folder / METRICS_FILE))
        return [run for run in newest if run.refresh(until)]

    def _named(self) -> Iterator[tuple[str, Path]]:
        """Each run's folder with its unique name: the path below its root, after the root's name if there are several
        roots."""
        taken: set[str] = set()
        for root in self.roots:
            for folder in _run_folders(root, _DEPTH):
                below = folder.relative_to(root).parts
                name = "/".join((root.name, *below) if len(self.roots) > 1 or not below else below)
                name = str(folder) if name in taken else name
                taken.add(name)
                yield name, folder


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs below this one, by name. Links are not followed: they may lead anywhere."""
    if any((folder / name).is_file() for name in (METRICS_FILE, _CONFIG_FILE)):
        if not any((folder / name).is_symlink() for name in _READ):
            yield folder
        return
    if depth == 0:
        return
    try:
        inner = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder that may not be read holds no runs for us
        return
    for name in inner:
        if not name.startswith(".") and name not in _PASSED_OVER:
            yield from _run_folders(folder / name, depth - 1)


def _written(path: Path) -> int:
    """Time of a file's last change, in nanoseconds; 0 without a file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _names_training_data(path: str) -> bool:
    return path.startswith(("data.train", "domains.")) and path.rpartition(".")[2] in ("path", "reasoning_gym", "train")


def _holder(lock_file: Path) -> dict[str, Json]:
    """Facts in the lock about the process that holds it; empty if none does. The lock itself is not touched: even a
    shared one could keep a run from starting."""
    try:
        content = read_json(lock_file)
    except UnreadableError:
        return {}
    return content if isinstance(content, dict) else {}


def _origin(environment_file: Path) -> tuple[str, str, int]:
    """Read when a run began, and the folder and step of the run that it was forked from."""
    try:
        environment = read_json(environment_file)
        origin = environment.get("forked_from")
        began = str(environment["starts"][0]["started"])
        return (began, str(Path(origin["run"]).resolve()), int(origin["step"])) if origin else (began, "", 0)
    except (UnreadableError, KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "", "", 0
