"""Measured results as JSON that people can read and `git diff` can compare: one record a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 120


def write_json(path: Path, data: Any) -> None:
    """Plain JSON; only the line breaks are chosen. `json.loads` reads it."""
    path.write_text("".join(pieces(data, depth=0)) + "\n", encoding="utf-8")


def pieces(data: Any, depth: int) -> Iterator[str]:
    """The text of a value. What is short, and each mapping in a list (a record), takes one line."""
    plain = json.dumps(data)
    if len(plain) + depth <= WIDTH or not isinstance(data, (dict, list)):
        yield plain
        return
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    yield opening
    for index, (key, value) in enumerate(entries):
        yield ("," if index else "") + "\n" + " " * (depth + 1)
        yield f"{json.dumps(key)}: " if isinstance(data, dict) else ""
        record = isinstance(data, list) and isinstance(value, dict)
        yield from [json.dumps(value)] if record else pieces(value, depth + 1)
    yield "\n" + " " * depth + closing
