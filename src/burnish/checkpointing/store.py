"""Checkpoints of a run: one folder per step, which is either complete or absent.

`checkpoints/step-000123` is written under a temporary name, sealed with a manifest, forced to disk and then renamed.
Whenever the process is killed, the newest sealed checkpoint still exists.

The manifest lists a checkpoint's files with sizes and hashes, which shows whether it is complete and undamaged.
Normally a checkpoint is made at the end of a step, after its line of metrics is written. If a run has to stop between
its last update and that line, the checkpoint has a `pending.json` next to the weights, and the resumed run first
finishes that step.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_remedy, fsync
from burnish.outside.reading import UnreadableError, file_problem, read_json

MANIFEST = "manifest.json"
FORMAT = 1
PENDING_FILE = "pending.json"
FINGERPRINT_FILE = "fingerprints.json"
_BROKEN_CONTENT = (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError)
_NAME = re.compile(r"step-(\d{6,})")
_WRITING = ".writing"
_REPLACED = ".replaced"
_DAMAGED = ".damaged"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sealed checkpoint."""

    step: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Found:
    """The newest complete checkpoint, and the problems of newer ones."""

    checkpoint: Checkpoint | None
    problems: tuple[str, ...]


class CheckpointStore:
    """Saves, finds and removes the checkpoints of a run folder. Only one process may write (see `RunLock`)."""

    def __init__(
        self, run_dir: Path, *, keep: int = 2, extra_files: Mapping[str, Callable[[], str]] | None = None
    ) -> None:
        """`extra_files`: name -> function that returns the text of a small file, which is added to every checkpoint
        after `write` has filled it."""
        self._folder = run_dir / "checkpoints"
        self._keep = keep
        self._extra_files = dict(extra_files or {})

    def save(self, step: int, write: Callable[[Path], Mapping[str, str] | None]) -> Checkpoint:
        """Call `write` with an empty folder to fill, seal it as the checkpoint of `step`, then remove old ones.

        `write` returns the hashes of files that it has hashed already, for `seal`.

        A checkpoint of the same step is replaced. Raises CheckpointError if writing to the disk fails. Then older
        checkpoints are untouched, and nothing half-written remains.
        """
        final = self._path(step)
        writing = final.with_name(final.name + _WRITING)
        with self._disk_errors(step, writing):
            _remove(writing)
            writing.mkdir(parents=True)
            hashed = write(writing)
            for name, text in self._extra_files.items():
                (writing / name).write_text(text(), encoding="utf-8")
            seal(writing, step, hashed)
            self._put_in_place(writing, final)
            self._remove_old(step)
        return Checkpoint(step, final)

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint folder, complete or not, oldest first."""
        if not self._folder.is_dir():
            if os.path.lexists(self._folder):
                raise CheckpointError(
                    f"{self._folder} is not a folder", remedy="move it away, or set `output` to another folder"
                )
            return []
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in names if match)

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step, complete or not. It must be one of `steps`."""
        return Checkpoint(step, self._path(step))

    def latest_valid(self) -> Found:
        """The newest checkpoint whose files are all present and unchanged. Having no checkpoint is not an error."""
        problems: list[str] = []
        for step in reversed(self.steps()):
            problem = verify(self._path(step), step)
            if problem is None:
                return Found(Checkpoint(step, self._path(step)), tuple(problems))
            problems.append(problem)
        return Found(None, tuple(problems))

    def clean(self) -> list[str]:
        """Clean up after a killed run, and return the names of the removed files. The run must be locked."""
        if not self._folder.is_dir():
            return []
        with self._disk_errors(None, self._folder):
            return [path.name for path in sorted(self._folder.iterdir()) if self._tidy(path)]

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename checkpoints of later steps, which are damaged if the run resumes from an older one: their weights may
        be intact, or readable again once the disk is. Returns the new paths."""
        aside = []
        with self._disk_errors(None, self._folder):
            for later in [later for later in self.steps() if later > step]:
                target = self._path(later).with_name(f"{self._path(later).name}{_DAMAGED}")
                _remove(target)  # of an earlier time
                aside.append(self._path(later).rename(target))
        return aside

    def prune(self, newest: int) -> None:
        """Remove all checkpoints up to `newest` except the `keep` newest. `newest` must be complete.

        More can be left by a run that stopped on a full disk, or that had a larger `keep` before.
        """
        with self._disk_errors(None, self._folder):
            self._remove_old(newest)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def _put_in_place(self, writing: Path, final: Path) -> None:
        """Rename `writing` to `final`. A rename cannot replace a folder with content, so an old one is moved first."""
        aside = final.with_name(final.name + _REPLACED)
        if final.exists():
            _remove(aside)
            final.rename(aside)
        writing.rename(final)
        fsync(self._folder)  # so that the rename survives a power failure before the old one is removed
        _remove(aside)

    def _remove_old(self, newest: int) -> None:
        """Remove checkpoints older than the `keep` newest ones up to `newest`, which is safely on disk by now."""
        for step in [step for step in self.steps() if step <= newest][: -self._keep]:
            _remove(self._path(step))

    def _tidy(self, path: Path) -> bool:
        if path.name.endswith(_REPLACED):
            original = path.with_name(path.name.removesuffix(_REPLACED))
            if not original.exists():  # killed between the two renames, so the old one is still the valid one
                path.rename(original)
                return False
        elif not path.name.endswith(_WRITING):
            return False
        _remove(path)
        return True

    @contextmanager
    def _disk_errors(self, step: int | None, path: Path) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # boundary: safetensors and tokenizers have their own errors for a full disk
            number = _errno_in(str(error))  # Rust libraries only have it in the message
            if step is not None and not path.parent.exists():
                raise CheckpointError(
                    f"{path.parent} was removed or moved away while the checkpoint of step {step} was being written",
                    remedy="put it back if it was moved, then start again: it resumes from the newest checkpoint there",
                ) from error
            if not (isinstance(error, (OSError, SafetensorError)) or number):
                raise
            cause = error if isinstance(error, OSError) else OSError(number, str(error))
            if step is not None:
                _remove(path)  # the half-written checkpoint, which also frees its space on a full disk
            what = f"the checkpoint of step {step} at {path}" if step is not None else f"the checkpoints in {path}"
            raise CheckpointError(
                f"cannot write {what}: {cause.strerror} (older checkpoints are untouched)",
                remedy=disk_remedy(cause, self._folder),
            ) from error


def _remove(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a kill never leaves a half-removed checkpoint under its name."""
    if not folder.exists():
        return
    if not folder.name.endswith(_WRITING):
        doomed = folder.with_name(folder.name + _WRITING)  # a name that `clean` removes after a kill
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        folder = doomed
    shutil.rmtree(folder, ignore_errors=True)


def _errno_in(message: str) -> int:
    """The number in "... (os error 28)", or 0 if there is none."""
    match = re.search(r"os error (\d+)", message)
    return int(match[1]) if match else 0


def seal(folder: Path, step: int, hashed: Mapping[str, str] | None = None) -> None:
    """Hash every file below `folder`, write the manifest, and force all of it to disk.

    hashed: file -> SHA-256 of the bytes that were written, of files that need not be read again.
    """
    known = hashed or {}
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    names = {path.relative_to(folder).as_posix(): path for path in found}
    files = {
        name: {"size": path.stat().st_size, "sha256": known.get(name) or _sha256(path)} for name, path in names.items()
    }
    content = {"format": FORMAT, "step": step, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    # Everything must be on disk before the folder gets its final name. Otherwise a power failure could leave a
    # checkpoint with that name and empty files.
    for path in (*found, folder / MANIFEST, *(path for path in folder.rglob("*") if path.is_dir()), folder):
        fsync(path)


def verify(folder: Path, step: int) -> str | None:
    """Check the checkpoint of a step; return what is wrong with it, or None if it is complete."""
    if not os.path.lexists(folder / MANIFEST):
        return f"{folder} has no {MANIFEST}"
    try:
        content = read_json(folder / MANIFEST)
    except UnreadableError as error:
        return f"{folder / MANIFEST} {error}"
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        return f"{folder / MANIFEST} is not a manifest"
    if content.get("format") != FORMAT:
        return f"{folder / MANIFEST} has format {content.get('format')!r}, but this version reads {FORMAT}"
    if content.get("step") != step:
        return f"{folder} holds step {content.get('step')!r}"
    return next((problem for item in content["files"].items() if (problem := _check(folder, *item))), None)


def read_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a sealed checkpoint, by its name in the folder. CheckpointError for a broken manifest."""
    with reading_own(str(folder / MANIFEST)):
        return {str(name): str(entry["sha256"]) for name, entry in read_json(folder / MANIFEST)["files"].items()}


def _check(folder: Path, relative: str, expected: object) -> str | None:
    path = folder / relative
    if not isinstance(expected, dict) or set(expected) != {"size", "sha256"}:
        return f"{folder / MANIFEST} has a broken entry for {relative!r:.200}"
    problem = file_problem(path)
    if problem is not None:
        return f"{path} {'is missing' if problem == 'does not exist' else problem}"
    try:
        size = path.stat().st_size
        if size != expected["size"]:
            return f"{path} has {size} bytes instead of {expected['size']}"
        if _sha256(path) != expected["sha256"]:
            return f"{path} does not have the content that was saved"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(slots=True)
class Pending:
    """A step whose weights are final but whose metrics are not yet written.

    `row`: its metrics so far, without an evaluation's. `normalised`: whether the final normalisation of a reward model,
    which belongs to its last step, is done.
    """

    row: dict[str, float]
    normalised: bool = False

    def is_finite(self) -> bool:
        """Return whether all metrics are finite, so that the row can be written."""
        return all(math.isfinite(value) for value in self.row.values())


def write_pending(folder: Path, pending: Pending | None) -> None:
    """Write `pending.json` into a checkpoint that is being made, unless its step is complete (None)."""
    if pending is not None:
        (folder / PENDING_FILE).write_text(json.dumps(asdict(pending), allow_nan=False), encoding="utf-8")


def read_pending(folder: Path) -> Pending | None:
    """Read the work left to do for a checkpoint's step; None if it is complete. CheckpointError for a damaged file."""
    path = folder / PENDING_FILE
    if not os.path.lexists(path):
        return None
    with reading_own(str(path)):
        content = read_json(path)
        row = {str(name): float(value) for name, value in content["row"].items()}
        return Pending(row, bool(content["normalised"]))


@contextmanager
def reading_own(what: str) -> Iterator[None]:
    """Raise CheckpointError if a file of a checkpoint does not have the content that this version writes."""
    try:
        yield
    except (*_BROKEN_CONTENT, UnreadableError, OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot read {what}: {error}",
            remedy="remove that checkpoint folder; the run resumes from the one before it",
        ) from error
