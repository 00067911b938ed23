"""What was still to be done about a checkpoint's step when the run had to stop: evaluation, and its line of metrics.

A checkpoint is made at the end of a step, when its line is written. One that is made because something failed in
between has `pending.json` beside the weights, and the resumed run first does the rest of that step.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from burnish.errors import CheckpointError
from burnish.reading import UnreadableError, read_json

PENDING_FILE = "pending.json"


@dataclass(slots=True)
class Pending:
    """A step whose weights are final and whose metrics are not written.

    `row`: its numbers so far, without those of an evaluation. `normalised`: whether a reward model's last
    normalisation, which belongs to its last step, has been done.
    """

    row: dict[str, float]
    normalised: bool = False

    def is_finite(self) -> bool:
        """Whether the row can be written at all."""
        return all(math.isfinite(value) for value in self.row.values())


def write_pending(folder: Path, pending: Pending | None) -> None:
    """Write `pending.json` into a checkpoint that is being made; nothing when its step is complete."""
    if pending is not None:
        content = {"row": pending.row, "normalised": pending.normalised}
        (folder / PENDING_FILE).write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def read_pending(folder: Path) -> Pending | None:
    """The unfinished business of a checkpoint, None when its step is complete. CheckpointError for a damaged file."""
    path = folder / PENDING_FILE
    if not os.path.lexists(path):
        return None
    try:
        content = read_json(path)
        row = {str(name): float(value) for name, value in content["row"].items()}
        return Pending(row, bool(content["normalised"]))
    except (UnreadableError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"cannot read {path}: {error}",
            remedy="remove that checkpoint folder; the run resumes from the one before it",
        ) from error
