"""Notes of readers on a run, one per line of `board/notes.jsonl` in its folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TypedDict

from burnish.board.index import FOLDER, own_folder
from burnish.errors import DataError
from burnish.observability.atomic import PRIVATE, disk_errors

FILE = "notes.jsonl"
MOST_CHARACTERS = 4_000


class Note(TypedDict):
    """A remark on a step, or on one of its groups; written: local time with its offset."""

    text: str
    kind: str
    step: int
    group: int | None
    written: str


def read_notes(run_dir: Path) -> list[Note]:
    """Read the notes on a run, oldest first. DataError if a line is damaged."""
    path = run_dir / FOLDER / FILE
    if path.is_symlink() or path.parent.is_symlink() or not path.exists():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", remedy="fix or remove it") from error


def add_note(run_dir: Path, text: str, kind: str, step: int, group: int | None) -> Note:
    """Append a note. DataError if it is empty or too long, or if the folder cannot be written to."""
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise DataError(
            f"a note has 1 to {MOST_CHARACTERS:,} characters", remedy="write it shorter, or write something"
        )
    note: Note = {"text": text.strip(), "kind": kind, "step": step, "group": group, "written": _now()}
    path = run_dir / FOLDER / FILE
    with disk_errors(f"write {path}", path.parent, DataError):
        own_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
    return note


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
