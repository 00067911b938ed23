"""An index of a run's recorded responses, kept beside its files: finding one of millions reads one line.

A file is indexed when it is first looked at, and again when it has changed. The index holds only what can be read again
from the files, so whoever removes it loses nothing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from burnish.board.samples import reading_recorded
from burnish.observability.atomic import PRIVATE
from burnish.observability.recorder import RecordedLine, num_sampled, recorded_files, rollout_of

FOLDER = "board"
_FILE = "index.sqlite"
_FORMAT = 1
"""Raise it whenever the columns change: indexes of other versions are made anew."""
_ASKED_CHARACTERS = 240
Kind = Literal["step", "eval"]


class IndexEntry(NamedTuple):
    """A recorded response, and its line: `length` bytes from `offset` on. `asked` is the end of its prompt."""

    kind: Kind
    step: int
    offset: int
    length: int
    group_id: int
    prompt_id: str
    asked: str
    sample: int
    greedy: bool
    reward: float | None
    status: str
    finish: str
    kept: bool | None
    why: str
    domain: str
    tokens: int


_COLUMNS = ", ".join(IndexEntry._fields)
_SCHEMA = f"""
CREATE TABLE files (kind TEXT, step INTEGER, size INTEGER, changed INTEGER, PRIMARY KEY (kind, step));
CREATE TABLE responses ({_COLUMNS});
CREATE INDEX of_step ON responses (kind, step, group_id);
CREATE INDEX of_prompt ON responses (prompt_id, kind, step);
PRAGMA user_version = {_FORMAT};
"""


@dataclass(slots=True)
class RolloutIndex:
    """The index of the rollouts of one run. Methods may be called by several threads.

    It is held in memory where the run's folder cannot be written to.
    """

    run_dir: Path
    _database: sqlite3.Connection | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def files(self, kind: Kind = "step") -> dict[int, Path]:
        """Return the files with rollouts of training, or of evaluation, by step and in order."""
        return recorded_files(self.run_dir / "rollouts", evaluation=kind == "eval")

    def entries(self, kind: Kind, step: int) -> list[IndexEntry]:
        """Return all responses of a step, in the order of the file; none without a file. DataError if it is
        damaged."""
        with self._lock:
            self.add(kind, step)
            return self._select("kind = ? AND step = ? ORDER BY offset", kind, step)

    def of_prompt(self, prompt_id: str, kind: Kind) -> list[IndexEntry]:
        """Return the responses to a prompt in all files that are indexed so far, by step."""
        with self._lock:
            return self._select("prompt_id = ? AND kind = ? ORDER BY step, offset", prompt_id, kind)

    def missing(self, kind: Kind) -> list[int]:
        """Return the steps whose files are not indexed yet."""
        with self._lock:
            known = {step for (step,) in self._open().execute("SELECT step FROM files WHERE kind = ?", (kind,))}
        return [step for step in self.files(kind) if step not in known]

    def add(self, kind: Kind, step: int) -> None:
        """Index the file of a step, in a new index if someone has removed the one that is open. DataError if the file
        is damaged."""
        path = self.path(kind, step)
        with self._lock, reading_recorded(path):
            try:
                self._update(kind, step, path)
            except sqlite3.Error:
                self.close()
                self._update(kind, step, path)

    def lines(self, entries: Sequence[IndexEntry]) -> list[RecordedLine]:
        """Read the lines of these responses, which are all of one file. DataError if it has changed meanwhile."""
        if not entries:
            return []
        path = self.path(entries[0].kind, entries[0].step)
        with reading_recorded(path), path.open("rb") as file:
            return [rollout_of(os.pread(file.fileno(), entry.length, entry.offset)) for entry in entries]

    def close(self) -> None:
        """Close the file of the index."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def path(self, kind: Kind, step: int) -> Path:
        """Return where the rollouts of a step are, if they were recorded."""
        return self.run_dir / "rollouts" / f"{kind}-{step:06d}.jsonl"

    def _select(self, condition: str, *values: str | int) -> list[IndexEntry]:
        rows = self._open().execute(f"SELECT {_COLUMNS} FROM responses WHERE {condition}", values)
        return [IndexEntry(*row) for row in rows]

    def _update(self, kind: Kind, step: int, path: Path) -> None:
        """Index the file unless it is as it was when it was indexed before."""
        database, now = self._open(), _size_and_time(path, self.run_dir)
        found = database.execute("SELECT size, changed FROM files WHERE kind = ? AND step = ?", (kind, step))
        if found.fetchone() == now:
            return
        entries = list(_entries(kind, step, path)) if now is not None else []
        with database:
            for table in ("files", "responses"):
                database.execute(f"DELETE FROM {table} WHERE kind = ? AND step = ?", (kind, step))
            if now is not None:
                database.execute("INSERT INTO files VALUES (?, ?, ?, ?)", (kind, step, *now))
                places = ", ".join("?" * len(IndexEntry._fields))
                database.executemany(f"INSERT INTO responses VALUES ({places})", entries)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = _opened(self.run_dir / FOLDER / _FILE)
        return self._database


def _size_and_time(path: Path, run_dir: Path) -> tuple[int, int] | None:
    """Size and time of the last change; None without a file, or for a link that leads out of the run's folder."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_size, status.st_mtime_ns) if path.resolve().is_relative_to(run_dir) else None


def own_folder(folder: Path) -> None:
    """Make the board's folder in a run's folder. OSError if it cannot be made, or is a link to another place."""
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "the folder of the board is a link", str(folder))


def _opened(path: Path) -> sqlite3.Connection:
    """Open the index at this path, made anew if it is damaged or of another version; else in memory."""
    try:
        own_folder(path.parent)
        return _connected(path)
    except (OSError, sqlite3.Error):  # such as a folder of somebody else
        return _made(sqlite3.connect(":memory:", check_same_thread=False))


def _connected(path: Path) -> sqlite3.Connection:
    """Connect to an index, and make its tables in an empty file; in a new one if the file is damaged or of another
    version."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE))
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute("PRAGMA synchronous = OFF")  # what a power failure takes can be read again
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        version, tables = None, 1
    if tables and version != _FORMAT:
        database.close()
        path.unlink()
        return _connected(path)
    return database if tables else _made(database)


def _made(database: sqlite3.Connection) -> sqlite3.Connection:
    database.executescript(_SCHEMA)
    return database


def _entries(kind: Kind, step: int, path: Path) -> Iterator[IndexEntry]:
    """Yield the responses in a file of rollouts. DataError, with the file, if it is damaged."""
    offset = 0
    with reading_recorded(path), path.open("rb") as file:
        for line in file:
            yield _entry(kind, step, offset, len(line), rollout_of(line))
            offset += len(line)


def _entry(kind: Kind, step: int, offset: int, length: int, line: RecordedLine) -> IndexEntry:
    reward = line["reward"]
    return IndexEntry(
        kind=kind,
        step=step,
        offset=offset,
        length=length,
        group_id=line["group_id"],
        prompt_id=line["prompt_id"],
        asked=_asked(line["prompt"])[-_ASKED_CHARACTERS:],
        sample=line["sample_index"],
        greedy=line["greedy"],
        reward=float(reward) if isinstance(reward, (int, float)) else None,
        status=line["status"],
        finish=line["finish_reason"],
        kept=line.get("kept"),
        why=line.get("dropped_because", ""),
        domain=line["domain"],
        tokens=num_sampled(line),
    )


def _asked(prompt: str | list[RecordedLine]) -> str:
    """The text of a prompt, or of the last message of a conversation."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
