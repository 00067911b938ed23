"""Find the checkpoint that a model path means if it names a run: `runs/sft`, `runs/sft@500`, `runs/sft@best`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.checkpointing.run import CONFIG_FILE, RunDirectory
from burnish.checkpointing.sources import split_choice
from burnish.checkpointing.store import Checkpoint, CheckpointStore, verify
from burnish.config.kinds import find_kind
from burnish.config.loading import kind_of_data
from burnish.errors import CheckpointError, did_you_mean, suggestion
from burnish.observability.history import read_history
from burnish.observability.metric_names import find_metric

BEST = "best"
_MAX_DIGITS = 18
"""More than any step has. `int` raises ValueError for thousands of digits."""
LOWER_IS_BETTER = ("loss", "perplexity", "error", "truncated", "failed")
"""A metric without a direction in the table, and of no family there, is best when lowest if the last part of its name
has one of these words."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A checkpoint of a run, and why it was chosen."""

    run: Path
    checkpoint: Checkpoint
    reason: str

    def __str__(self) -> str:
        return f"checkpoint of step {self.checkpoint.step} of {self.run} ({self.reason})"


def find_checkpoint(path: str, *, field: str) -> Chosen | None:
    """The checkpoint that `RUN` (the newest complete one), `RUN@STEP`, `RUN@best` or `RUN@best:METRIC` means.

    None for a path that is not a run (a model folder, a hub name). `field` is the field of the run file that names it.
    Raises CheckpointError, which lists the choices, for a run without a complete checkpoint, a step without one, or a
    metric that was not measured at any of the kept checkpoints.
    """
    folder, choice = split_choice(path)
    if not is_run(folder):
        if choice is None:
            return None
        raise CheckpointError(
            f"{field} is {path!r}, but {folder} is not the folder of a run (it has no {CONFIG_FILE})",
            remedy=_nearest_run(folder) + "the part before the @ is the `output` of a run",
        )
    store = CheckpointStore(folder)
    if not store.steps():
        raise CheckpointError(
            f"{field} is {path!r}, a run without a checkpoint",
            remedy="let the run save one first, or name a model folder",
        )
    if choice is None:
        return _newest(folder, store, field)
    name, colon, metric = choice.partition(":")
    if name == BEST and (metric or not colon):
        return _best(folder, store, metric or None, field)
    if choice.isascii() and choice.isdigit() and len(choice) <= _MAX_DIGITS:
        return _of_step(folder, store, int(choice), field)
    raise CheckpointError(
        f"{field} is {path!r}, but {choice!r} does not name a checkpoint",
        remedy=f"write {folder} for the newest, {folder}@STEP, {folder}@best or {folder}@best:METRIC; "
        + _list_checkpoints(store),
    )


def is_run(folder: Path) -> bool:
    """Return whether a run was started in this folder and it is not a model folder (with a config.json)."""
    # `os.path` returns False for names that the system refuses, where `pathlib` raises.
    return os.path.isfile(RunDirectory(folder).config_file) and not os.path.exists(folder / "config.json")


def _newest(folder: Path, store: CheckpointStore, field: str) -> Chosen:
    found = store.latest_valid()
    if found.checkpoint is None:
        raise CheckpointError(
            f"{field} is {str(folder)!r}, a run whose checkpoints are all damaged: {found.problems[0]}",
            remedy="restore one of them, or train again",
        )
    damaged = "".join(f"; not used: {problem}" for problem in found.problems)
    return Chosen(folder, found.checkpoint, f"the newest{damaged}")


def _of_step(folder: Path, store: CheckpointStore, step: int, field: str, reason: str = "as requested") -> Chosen:
    if step not in store.steps():
        raise CheckpointError(f"{field}: {folder} has no checkpoint of step {step}", remedy=_list_checkpoints(store))
    checkpoint = store.at(step)
    problem = verify(checkpoint.folder, step)
    if problem is not None:
        raise CheckpointError(
            f"{field}: the checkpoint of step {step} of {folder} is damaged: {problem}", remedy=_list_checkpoints(store)
        )
    return Chosen(folder, checkpoint, reason)


def _best(folder: Path, store: CheckpointStore, metric: str | None, field: str) -> Chosen:
    history = {name: dict(zip(steps, values, strict=True)) for name, (steps, values) in read_history(folder).items()}
    kept = store.steps()
    measured = {name: values for name, values in history.items() if any(step in values for step in kept)}
    name = metric or _default_metric(folder, measured, field)
    if name not in history:
        raise CheckpointError(
            f"{field}: {folder} has not measured {name!r}", remedy=suggestion(name, _comparable(measured))
        )
    if name not in measured:
        steps = ", ".join(map(str, sorted(history[name])))
        raise CheckpointError(
            f"{field}: {folder} measured {name} at steps {steps}, but has kept no checkpoint of these; "
            + _list_checkpoints(store),
            remedy="make evaluation.every_steps and checkpoint.every_steps coincide, raise checkpoint.keep, or choose "
            "a step",
        )
    lower = is_best_when_lowest(name)
    best_of_all = _argbest(history[name], lower)
    step = _argbest({at: value for at, value in history[name].items() if at in kept}, lower)
    reason = f"{'lowest' if lower else 'highest'} {name} of those kept, {history[name][step]:.4g}"
    if history[name][best_of_all] != history[name][step]:
        reason += f"; step {best_of_all} had {history[name][best_of_all]:.4g}, but has no checkpoint (any more)"
    return _of_step(folder, store, step, field, reason)


def is_best_when_lowest(name: str) -> bool:
    """Decide by the table of metrics. The names of domains and rewards say nothing about the direction."""
    last = name.rpartition("/")[2]
    known = find_metric(f"eval/{last}" if name.startswith("eval/domain/") else name)
    if known is not None and (known.better or known.is_family):
        return known.better == "lower"
    return any(word in last for word in LOWER_IS_BETTER)


def _argbest(values: Mapping[int, float], lower: bool) -> int:
    """The step of the best value; the latest one if several are equal."""
    return max(values, key=lambda step: (-values[step] if lower else values[step], step))


def _default_metric(folder: Path, measured: Mapping[str, object], field: str) -> str:
    candidates = find_kind(kind_of_data(RunDirectory(folder).read_config())).best
    found = next((name for name in candidates if name in measured), None)
    if found is None:
        listed = ", ".join(_comparable(measured)) or "none"
        raise CheckpointError(
            f"{field}: {folder} has measured no {' and no '.join(candidates)} at a checkpoint that it has kept",
            remedy=f"name a metric (@best:METRIC; measured there: {listed}) or a step",
        )
    return found


def _comparable(measured: Mapping[str, object]) -> Sequence[str]:
    """The metrics to suggest: held-out ones, if there are any."""
    held_out = [name for name in measured if name.startswith("eval/")]
    return held_out or [name for name in measured if not name.startswith(("time/", "throughput/"))]


def _list_checkpoints(store: CheckpointStore) -> str:
    return "it has checkpoints of steps " + ", ".join(map(str, store.steps()))


def _nearest_run(folder: Path) -> str:
    runs = [entry.name for entry in folder.parent.iterdir() if is_run(entry)] if os.path.isdir(folder.parent) else []
    near = did_you_mean(folder.name, runs, before=f"{folder.parent}{os.sep}")
    return f"{near} " if near else ""
