"""A run's folder while the run writes to it: locked, compared with the run's beginning, checked to be still there.

The fast paths that a run began with are recorded in it, so that a resume takes the same ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.fingerprints import Fingerprints, FingerprintsInProgress, refuse_changes
from burnish.checkpointing.lock import RunLock
from burnish.checkpointing.run import RunDirectory
from burnish.checkpointing.sources import check_output
from burnish.checkpointing.store import FINGERPRINT_FILE, Checkpoint, CheckpointStore, Found, read_pending
from burnish.config.schema import RunConfig
from burnish.errors import CheckpointError
from burnish.forward.fast_paths import FastPaths
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.observability.control import read_ending
from burnish.outside.reading import UnreadableError, read_json, reason_of


@dataclass(frozen=True, slots=True)
class Workplace:
    """The locked folder of a run, with the checkpoint that the run continues from.

    `accepted`: changes since that checkpoint that the user has accepted; `say` prints a line for the user.
    """

    config: RunConfig
    lock: RunLock
    store: CheckpointStore
    checkpoint: Checkpoint | None
    say: Callable[[str], None]
    accepted: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return Path(self.config.output)

    @property
    def resume_step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.step

    @property
    def written_step(self) -> int | None:
        """The last step whose line of metrics is written: the checkpoint's, or the one before it if the checkpoint was
        saved before that line was written. None for a new run."""
        if self.checkpoint is None:
            return None
        return self.checkpoint.step - (read_pending(self.checkpoint.folder) is not None)

    def check(self) -> None:
        """Raise CheckpointError if the folder is not the one that was locked. To be called before writing. Removed
        files that can be written again are rewritten, and this is reported."""
        self.lock.check()
        for line in RunDirectory(self.path).restore(self.config):
            self.say(line)

    def lacks_checkpoint(self, saved_step: int | None) -> bool:
        """Return whether the newest checkpoint was removed, so that a new one is due. Reports it."""
        if saved_step is None or saved_step in self.store.steps():
            return False
        self.say(
            f"the checkpoint of step {saved_step} in {self.path} was removed during the run; a new one is made now"
        )
        return True


@contextmanager
def open_workplace(config: RunConfig, console: Console, *, accept_changes: bool = False) -> Iterator[Workplace]:
    """Lock the run's folder, refuse a run of a different configuration, and find the newest complete checkpoint.

    Raises CheckpointError if the files or versions that the run depends on differ from that checkpoint's;
    `accept_changes` accepts them, and later checkpoints hold the new ones.
    """

    def say(text: str) -> None:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    check_output(config)
    path, lock = Path(config.output), RunLock(Path(config.output))
    with lock:
        begun = RunDirectory(path).admit(config)
        now = FingerprintsInProgress(config)  # a new run does not need them before it saves
        fingerprints = {FINGERPRINT_FILE: lambda: now.result().dump()}
        store = CheckpointStore(path, keep=config.checkpoint.keep, extra_files=fingerprints)
        store.clean()
        found = _newest(store, path, say)
        if begun and found.checkpoint is None:
            _refuse_finished(path, say)
        accepted: tuple[str, ...] = ()
        if found.checkpoint is not None:
            accepted = _compare(path, found.checkpoint, now.result(), say, accept_changes=accept_changes)
            for aside in store.set_aside_after(found.checkpoint.step):
                say(f"the damaged checkpoint is kept as {aside}, which nothing reads: remove it if you do not need it")
            store.prune(found.checkpoint.step)
            console.print(f"resuming {path} after step {found.checkpoint.step}", markup=False, highlight=False)
        yield Workplace(config, lock, store, found.checkpoint, say, accepted)


def _newest(store: CheckpointStore, path: Path, say: Callable[[str], None]) -> Found:
    found = store.latest_valid()
    for problem in found.problems:
        say(f"checkpoint not used: {problem}")
    if found.checkpoint is None and found.problems:
        raise CheckpointError(
            f"{path} has checkpoints, but none is complete",
            remedy="put one of them back, start over with --fresh (fresh=True), or set `output` to another folder",
        )
    return found


def _refuse_finished(path: Path, say: Callable[[str], None]) -> None:
    """Raise CheckpointError for a finished run without a checkpoint, whose record would be lost; report that one which
    was interrupted before its first checkpoint begins again."""
    ending = read_ending(path)
    if ending is not None:
        raise CheckpointError(
            f"{path} holds a run that ended after step {ending.step}, but no checkpoint of it",
            remedy="put its newest checkpoint back, set another `output`, or start over with --fresh (fresh=True)",
        )
    say(f"{path} has no checkpoint yet, so the run begins again, and so does its record")


def _compare(
    path: Path, checkpoint: Checkpoint, now: Fingerprints, say: Callable[[str], None], *, accept_changes: bool
) -> tuple[str, ...]:
    """The accepted changes since the checkpoint. CheckpointError for any that is not accepted."""
    before = Fingerprints.read(checkpoint.folder)
    if before is None:
        say(f"{checkpoint.folder} has no fingerprints, so changes of files or versions since then cannot be detected")
        return ()
    changes = before.changes(now)
    if not accept_changes:
        refuse_changes(path, changes)
    for change in changes:
        say(f"accepted change: {change}")
    for change in before.machine_changes(now):
        say(f"the machine has changed, so the last bits of sums may differ: {change}")
    return tuple(changes)


PATHS_FILE = "paths.json"


def recorded_paths(folder: Path) -> FastPaths:
    """Fast paths bound by the choices of the run in this folder, if any. Raises CheckpointError for a broken file."""
    return FastPaths(recorded_ways(folder))


def recorded_ways(folder: Path) -> dict[str, str]:
    """The fast paths that the run in this folder has recorded; empty if there are none. Raises as `recorded_paths`
    does."""
    file = folder / PATHS_FILE
    if not os.path.lexists(file):
        return {}
    try:
        content = read_json(file)
        ways: dict[str, str] = content["ways"]
        if not all(isinstance(text, str) for entry in ways.items() for text in entry):
            raise TypeError("its fast paths are not texts")
    except (UnreadableError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"cannot read {file}, which holds the fast paths of this run: {reason_of(error)}",
            remedy="remove it: the run then chooses again, and its numbers may differ in the last bits",
        ) from error
    return ways


def record_paths(folder: Path, paths: FastPaths) -> None:
    """Write the choices. Raises CheckpointError if the folder cannot be written to."""
    with disk_errors(f"write to {folder}", folder, CheckpointError):
        write_text_atomically(folder / PATHS_FILE, json.dumps({"ways": paths.record()}, indent=2) + "\n")
