"""Read `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from burnish.errors import DataError
from burnish.outside.reading import file_problem

TOKENS = ("rollout/response_tokens_sum", "train/tokens")
"""Metrics of a step's tokens: the sampled ones of `rl`, else those that were read."""
_REMEDY = (
    "fix the file (one line per step, in order), or move it away: a run then continues with a new one, but a report "
    "needs it"
)


def read_rows(path: Path) -> list[dict[str, float]]:
    """Read the rows of a metrics file, oldest first; empty if there is no file. A torn last line is left out.

    Raises DataError, with file and line, if any other line is not a row or is out of order, or if the file cannot be
    read.
    """
    problem = file_problem(path)
    if problem is not None and problem.startswith("does not exist"):
        return []
    if problem is not None:
        raise DataError(f"{path} {problem}", remedy=_REMEDY)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", remedy=_REMEDY) from error
    lines = content.split(b"\n")
    whole, torn = lines[:-1], lines[-1]  # a complete line ends with a newline
    rows: list[dict[str, float]] = []
    for number, line in enumerate(whole, start=1):
        row = problem_or_row(line)
        if isinstance(row, str):
            raise DataError(f"{path}:{number} is not a row of metrics: {row}", remedy=_REMEDY)
        if rows and row["step"] <= rows[-1]["step"]:
            raise DataError(
                f"{path}:{number} is the line of step {row['step']}, but follows the line of step {rows[-1]['step']}: "
                "a line is duplicated or out of order",
                remedy=_REMEDY,
            )
        rows.append(row)
    # A kill may have cut off only the newline, or an editor may have removed it. Then the last piece is a complete row.
    last = problem_or_row(torn)
    if not isinstance(last, str) and (not rows or last["step"] > rows[-1]["step"]):
        rows.append(last)
    return rows


def columns(rows: Sequence[dict[str, float]]) -> dict[str, tuple[list[int], list[float]]]:
    """Metric name -> (steps, values). A metric that is not in every row has fewer points."""
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
    """The metrics of a run, by name (see `columns`)."""
    return columns(read_rows(run_dir / "metrics.jsonl"))


def problem_or_row(line: bytes) -> dict[str, float] | str:
    """Parse a line of `metrics.jsonl`, or say why it is not a row."""
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or type(row.get("step")) is not int or row["step"].bit_length() > 63:
            return "it is not an object with an integer `step`"
        bad = [name for name, value in row.items() if type(value) not in (int, float) or not math.isfinite(value)]
    except (ValueError, RecursionError, OverflowError) as error:
        return str(error) or type(error).__name__
    return f"{bad[0]} is {row[bad[0]]!r:.60}, not a finite number" if bad else row
