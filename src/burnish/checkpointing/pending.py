"""What is left to do for a checkpoint's step: its evaluation and its line of metrics.

Normally a checkpoint is made at the end of a step, after its line of metrics is written. If a run has to stop between
its last update and that line, the checkpoint has a `pending.json` next to the weights, and the resumed run first
finishes that step.
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
    """A step whose weights are final but whose metrics are not yet written.

    `row`: its metrics so far, without those of an evaluation. `normalised`: whether the final normalisation of a reward
    model, which belongs to its last step, is done.
    """

    row: dict[str, float]
    normalised: bool = False

    def is_finite(self) -> bool:
        """Whether all metrics are finite, so that the row can be written."""
        return all(math.isfinite(value) for value in self.row.values())


def write_pending(folder: Path, pending: Pending | None) -> None:
    """Write `pending.json` into a checkpoint that is being made, unless its step is complete (None)."""
    if pending is not None:
        content = {"row": pending.row, "normalised": pending.normalised}
        (folder / PENDING_FILE).write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def read_pending(folder: Path) -> Pending | None:
    """What is left to do for a checkpoint's step; None if it is complete. CheckpointError for a damaged file."""
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
