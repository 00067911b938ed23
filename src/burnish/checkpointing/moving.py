"""Move an earlier run out of the way, but never one that is still running."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from burnish.checkpointing.lock import LOCK_FILE, RunLock
from burnish.checkpointing.run import CONFIG_FILE
from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_remedy

RUN_SIGNS = (CONFIG_FILE, LOCK_FILE, "checkpoints", "metrics.jsonl")
"""Any of these names in a folder shows that it is a run's folder."""


def move_run_aside(folder: Path, *, signs: Sequence[str] = RUN_SIGNS) -> Path | None:
    """Rename the folder to the first free `NAME.old-N` and return that path; None if there is nothing to move.

    A folder is a run's if it contains one of the names in `signs`. It is locked while it moves, together with all run
    folders below it. If it is a link, its target is moved and replaced by an empty folder. Raises CheckpointError, with
    nothing changed, if a process is writing to one of the folders, if the folder is not a run's, or if it cannot be
    renamed.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    target = folder.resolve()
    if not (target.is_dir() and any((target / sign).exists() for sign in signs)):
        raise CheckpointError(
            f"{folder} exists and is not the folder of a run, so it is not moved aside",
            remedy="set `output` to the folder of a run, or to one that does not exist yet",
        )
    with ExitStack() as stack:
        for inner in _run_folders(target):
            stack.enter_context(RunLock(inner))
        aside = _free_name(target)
        try:
            target.rename(aside)
            if folder.is_symlink():
                target.mkdir()
        except OSError as error:
            raise CheckpointError(
                f"cannot move {folder} aside: {error.strerror}", remedy=disk_remedy(error, target.parent)
            ) from error
    return aside


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself, and all folders below it with a lock file: a demo has two, a folder of runs has many."""
    return [folder, *sorted(path.parent for path in folder.rglob(LOCK_FILE) if path.parent != folder)]


def _free_name(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    return aside
