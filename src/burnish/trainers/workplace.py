"""The folder of a run while the run writes to it: locked, compared with what it began with, and still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.fingerprints import FINGERPRINT_FILE, Fingerprints, refuse_changes
from burnish.checkpointing.lock import RunLock
from burnish.checkpointing.output import check_output
from burnish.checkpointing.pending import read_pending
from burnish.checkpointing.run import RunDirectory
from burnish.checkpointing.store import Checkpoint, CheckpointStore, Found
from burnish.config.schema import RunConfig
from burnish.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Workplace:
    """The folder of a run, locked, with the checkpoint that the run goes on from.

    `accepted`: changes since that checkpoint that the user lets pass; `say` tells the user something.
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
        """The last step whose line of metrics is written: that of the checkpoint, or the one before where that line is
        still to come. None for a new run."""
        if self.checkpoint is None:
            return None
        return self.checkpoint.step - (read_pending(self.checkpoint.folder) is not None)

    def has_steps_to_make(self, total_steps: int) -> bool:
        """Whether anything is left to do: a step, or the rest of one that an error cut short."""
        checkpoint = self.checkpoint
        return checkpoint is None or checkpoint.step < total_steps or read_pending(checkpoint.folder) is not None

    def check(self) -> None:
        """Call it before writing. Raises CheckpointError when the folder is not the one that was locked; files of it
        that were removed and can be written anew are written anew, with a word about it."""
        self.lock.check()
        for line in RunDirectory(self.path).restore(self.config):
            self.say(line)

    def lacks_checkpoint(self, saved_step: int | None) -> bool:
        """Whether the newest checkpoint was removed, so that a new one is due; says so."""
        if saved_step is None or saved_step in self.store.steps():
            return False
        self.say(
            f"the checkpoint of step {saved_step} in {self.path} was removed during the run; a new one is made now"
        )
        return True


@contextmanager
def open_workplace(config: RunConfig, console: Console, *, accept_changes: bool = False) -> Iterator[Workplace]:
    """Lock the run's folder, refuse a run of another configuration, find the newest whole checkpoint.

    Raises CheckpointError when the files or versions that the run depends on are not those of that checkpoint;
    `accept_changes` lets them pass, and further checkpoints hold the new ones.
    """

    def say(text: str) -> None:
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)

    check_output(config)
    path, lock = Path(config.output), RunLock(Path(config.output))
    with lock:
        RunDirectory(path).admit(config)
        now = Fingerprints.of(config)
        store = CheckpointStore(path, keep=config.checkpoint.keep, extra_files={FINGERPRINT_FILE: now.dump()})
        store.clean()
        found = _newest(store, path, say)
        accepted: tuple[str, ...] = ()
        if found.checkpoint is not None:
            accepted = _compare(path, found.checkpoint, now, say, accept_changes=accept_changes)
            store.discard_after(found.checkpoint.step)
            store.prune(found.checkpoint.step)
            console.print(f"resuming {path} after step {found.checkpoint.step}", markup=False, highlight=False)
        yield Workplace(config, lock, store, found.checkpoint, say, accepted)


def _newest(store: CheckpointStore, path: Path, say: Callable[[str], None]) -> Found:
    found = store.latest_valid()
    for problem in found.problems:
        say(f"checkpoint not used: {problem}")
    if found.checkpoint is None and found.problems:
        raise CheckpointError(
            f"{path} has checkpoints but none that is whole",
            remedy="put one of them back, start over with --fresh, or set `output` to another folder",
        )
    return found


def _compare(
    path: Path, checkpoint: Checkpoint, now: Fingerprints, say: Callable[[str], None], *, accept_changes: bool
) -> tuple[str, ...]:
    """The changes since the checkpoint that are let pass. CheckpointError for any that is not."""
    before = Fingerprints.read(checkpoint.folder)
    if before is None:
        say(f"{checkpoint.folder} has no fingerprints: whether files or versions have changed since is not known")
        return ()
    changes = before.changes(now)
    if not accept_changes:
        refuse_changes(path, changes)
    for change in changes:
        say(f"accepted change: {change}")
    for change in before.machine_changes(now):
        say(f"another machine than before, the last bits of sums may differ: {change}")
    return tuple(changes)
