"""Reading `metrics.jsonl` back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.errors import DataError
from burnish.reading import file_problem


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file, oldest first. No file is no rows; a last line that a kill cut short is left out.

    Raises DataError with file and line when an earlier line is not a row.
    """
    problem = file_problem(path)
    if problem is not None and problem.startswith("does not exist"):
        return []
    if problem is not None:
        raise DataError(f"{path} {problem}", remedy="give the folder of a run")
    lines = path.read_bytes().split(b"\n")
    whole, torn = lines[:-1], lines[-1]  # every complete line ends with a newline, so the last piece is never one
    rows = [_parse(line, path, number) for number, line in enumerate(whole, start=1)]
    if torn.strip():
        rows += _parse_if_whole(torn)
    return rows


def columns(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """Metric name to (steps, values); a metric that is not in every row has fewer points."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name == "step":
                continue
            steps, values = found.setdefault(name, ([], []))
            steps.append(int(row["step"]))
            values.append(float(value))
    return dict(sorted(found.items()))


def read_history(run_dir: Path) -> dict[str, tuple[list[int], list[float]]]:
    """The metrics of a run as columns."""
    return columns(read_rows(run_dir / "metrics.jsonl"))


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            unusable = [name for name, value in row.items() if not isinstance(value, (int, float))]
            if not unusable:
                return row
            reason = f"{unusable[0]} is {row[unusable[0]]!r:.60}, not a number"
        else:
            reason = "it is not an object with a whole-numbered `step`"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise DataError(
        f"{path}:{number} is not a row of metrics: {reason}",
        remedy="remove that line, or the file if the run is not needed any more",
    )


def _parse_if_whole(line: bytes) -> list[dict[str, Any]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return [row] if isinstance(row, dict) and isinstance(row.get("step"), int) else []
