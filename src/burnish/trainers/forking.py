"""A run that goes on from a checkpoint of another run, with other settings.

The checkpoint becomes the new run's first one, so everything after that is an ordinary resume: weights, optimizer, data
position and the state of controllers are the other run's, and so are the metrics up to that step.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.chaining import Chosen, find_checkpoint
from burnish.checkpointing.fingerprints import Fingerprints
from burnish.checkpointing.lock import RunLock
from burnish.checkpointing.run import RunDirectory, changed_fields
from burnish.checkpointing.sources import check_output
from burnish.checkpointing.store import FINGERPRINT_FILE, MANIFEST, CheckpointStore, read_hashes, read_pending
from burnish.config.loading import kind_of_data
from burnish.config.schema_run import RunConfig
from burnish.errors import CheckpointError, ConfigError
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.observability.console import say
from burnish.observability.history import read_rows
from burnish.observability.sinks import METRICS_FILE
from burnish.trainers.chaining import pinned
from burnish.trainers.run_folder import PATHS_FILE
from burnish.types import Json


def fork_run(config: RunConfig, place: str, console: Console) -> None:
    """Begin a run's folder at the checkpoint of another run that `place` names (`runs/first@300`).

    Any field may differ; differences are reported. A folder that was forked from there already is left alone once it
    has a later checkpoint, so the same command continues the run. Raises CheckpointError for a folder that holds
    another run, ConfigError for a place that is not a run of this kind.
    """
    chosen = _chosen(config, place)
    config, _ = pinned(config)
    check_output(config)
    path, step = Path(config.output), chosen.checkpoint.step
    with RunLock(path):
        run, store = RunDirectory(path), CheckpointStore(path)
        origin: dict[str, Json] = {"run": str(chosen.run), "step": step}
        if run.begun() and run.forked_from() != origin:
            raise CheckpointError(
                f"{path} holds a run that was not forked from the checkpoint of step {step} of {chosen.run}",
                remedy="set another `output`, continue it without a fork, or start over with --fresh (fresh=True)",
            )
        if any(saved != step for saved in store.steps()):
            return
        now = Fingerprints.of(config)
        say(console, [f"{path} is forked from the {chosen}", *(f"  {line}" for line in _changes(config, chosen, now))])
        _copy(config, chosen, now)
        run.begin_fork(config, origin)  # last: without a configuration the folder is not a run yet


def _chosen(config: RunConfig, place: str) -> Chosen:
    chosen = find_checkpoint(place, field="fork")
    if chosen is None:
        raise ConfigError(
            f"fork is {place!r}, which is not the folder of a run",
            remedy="name a run and one of its checkpoints, for example runs/first@300",
        )
    kind = kind_of_data(RunDirectory(chosen.run).read_config())
    if kind != config.kind:
        raise ConfigError(
            f"fork is {place!r}, a run of `burnish {kind}`, which `burnish {config.kind}` cannot continue",
            remedy=f"begin with its weights instead: model={place}",
        )
    return chosen


def _changes(config: RunConfig, chosen: Chosen, now: Fingerprints) -> list[str]:
    """One line for each field, file and version that differs from the other run's."""
    fields = [str(one) for one in changed_fields(RunDirectory(chosen.run).read_config(), config)]
    before = Fingerprints.read(chosen.checkpoint.folder)
    return fields if before is None else fields + before.changes(now) + before.machine_changes(now)


def _copy(config: RunConfig, chosen: Chosen, now: Fingerprints) -> None:
    """Copy the checkpoint with the present fingerprints, the metrics up to it, and the fast paths."""
    source, path, folder = chosen.run, Path(config.output), chosen.checkpoint.folder
    written = chosen.checkpoint.step - (read_pending(folder) is not None)

    def copy(target: Path) -> dict[str, str]:
        own = shutil.ignore_patterns(MANIFEST, FINGERPRINT_FILE)
        shutil.copytree(folder, target, ignore=own, copy_function=_link, dirs_exist_ok=True)
        return read_hashes(folder)

    store = CheckpointStore(path, keep=config.checkpoint.keep, extra_files={FINGERPRINT_FILE: now.dump})
    store.save(chosen.checkpoint.step, copy)
    rows = [row for row in read_rows(source / METRICS_FILE) if row["step"] <= written]
    with disk_errors(f"write to {path}", path, CheckpointError):
        write_text_atomically(path / METRICS_FILE, "".join(f"{json.dumps(row)}\n" for row in rows))
        if (source / PATHS_FILE).exists():
            shutil.copyfile(source / PATHS_FILE, path / PATHS_FILE)


def _link(source: str, target: str) -> None:
    """Give a file of a checkpoint, which nothing writes to again, a second name; on another file system, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
