"""Timings of this machine, measured once and kept in the user's cache folder for the next run.

One file per question, named by everything that the answer depends on. The first answer stays: a file is never
replaced, so that processes that start together take the same paths and get the same numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from burnish.errors import KernelError
from burnish.forward.race import RaceResult
from burnish.kernels.build import cache_folder
from burnish.machine import processor

_SOURCES = Path(__file__).resolve().parent.parent
_ROOMS = ("kernels", "forward", "models", "rollouts")
"""Rooms whose code is timed."""
_MOST_BYTES = 1 << 20
_NAME_LENGTH, _ENDING = 32, ".json"

Key = Mapping[str, object]


class VerdictCache:
    """Outcomes by key, in files of `folder`; only in this process if there is no folder or it cannot be used."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, RaceResult] = {}

    def find(self, key: Key) -> RaceResult | None:
        """The known outcome. Files of other users and broken files are ignored."""
        text = _text(key)
        if text not in self._known and self._folder is not None:
            found = _read(self._folder / _name(text), text)
            if found is not None:
                self._known[text] = found
        return self._known.get(text)

    def keep(self, key: Key, outcome: RaceResult) -> RaceResult:
        """Keep this outcome unless another process was first; return the one that is kept. A folder that cannot be
        written is not an error: the next process will time again."""
        text = _text(key)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                _publish(self._folder, _name(text), text, outcome)
            outcome = _read(self._folder / _name(text), text) or outcome
        self._known[text] = outcome
        return outcome

    def kept_here(self, threads: int) -> Iterator[tuple[Key, RaceResult]]:
        """Yield the keys and outcomes in the folder that were timed on this processor with this number of threads."""
        wanted = {"threads": threads, **processor.identity()}
        files = [] if self._folder is None else _files(self._folder)
        for file in sorted(files):
            found = _read_any(file)
            if found is not None and wanted.items() <= found[0].items():
                yield found

    def forget(self) -> int:
        """Remove all outcomes, so that everything is timed again; return the number of files. Runs that have begun are
        not affected, because their folders hold their choices. Raises KernelError."""
        self._known.clear()
        files = [] if self._folder is None else _files(self._folder)
        try:
            for file in files:
                file.unlink(missing_ok=True)  # another process may forget them, too
        except OSError as error:
            raise KernelError(
                f"the timings in the cache folder cannot be removed: {error.strerror}",
                remedy="remove the folder burnish/paths in ~/.cache (or XDG_CACHE_HOME)",
            ) from error
        return len(files)


@cache
def own_cache() -> VerdictCache:
    """The cache of this process, in the folder next to the built kernels."""
    folder = cache_folder()
    return VerdictCache(None if folder is None else folder.parent / "paths")


@cache
def sources_digest() -> str:
    """Digest of the code that is timed: it changes whenever that code does."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_SOURCES / room).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                place = path.relative_to(_SOURCES).as_posix()
                digest.update(place.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _text(key: Key) -> str:
    return json.dumps(key, sort_keys=True)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_LENGTH] + _ENDING


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"*{_ENDING}") if len(path.stem) == _NAME_LENGTH]


def _publish(folder: Path, name: str, text: str, outcome: RaceResult) -> None:
    """Write the outcome to its file, complete at once, unless there is one already. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / name
    content = {"key": text, "winner": outcome.winner, "seconds": outcome.seconds}
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")
        with _alone(folder), contextlib.suppress(FileExistsError):
            if _read(path, text) is None:  # no answer yet, or a broken one
                path.unlink(missing_ok=True)
            os.link(temporary, path)  # complete at once, and only if there is none
    finally:
        os.unlink(temporary)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from replacing a broken file here: of two that found it broken, the second would remove the
    answer that the first already uses."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read(path: Path, text: str) -> RaceResult | None:
    found = _read_any(path)
    return found[1] if found is not None and _text(found[0]) == text else None


def _read_any(path: Path) -> tuple[Key, RaceResult] | None:
    """The key and the outcome in a file, whatever the question was; None for a broken one."""
    content = _own_text(path)
    if content is None:
        return None
    try:
        words = json.loads(content)
        seconds = {str(name): float(value) for name, value in words["seconds"].items()}
        outcome = RaceResult(str(words["winner"]), seconds)
        key = {str(name): value for name, value in json.loads(words["key"]).items()}
        is_whole = outcome.winner in seconds
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # broken, or somebody else's format
        return None
    is_right = is_whole and all(math.isfinite(value) and value > 0 for value in seconds.values())
    return (key, outcome) if is_right else None


def _own_text(path: Path) -> str | None:
    """The content of a plain file that only this user can have written; None otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        is_own = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not (is_own and stat.S_ISREG(about.st_mode) and about.st_size <= _MOST_BYTES):
            return None
        try:
            return file.read(_MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            return None
