"""The end of a run, in a file of its folder: the last step of a run that ends early, or by passes, does not tell."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.outside.reading import UnreadableError, read_json

ENDING_FILE = "finished.json"


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The end of a run: its last step, and why it is the last."""

    step: int
    because: str


def read_ending(run_dir: Path) -> RunEnding | None:
    """Read how the run in this folder has ended; None if it has steps left to make. CheckpointError for a damaged
    file."""
    file = run_dir / ENDING_FILE
    if not os.path.lexists(file):
        return None
    try:
        content = read_json(file)
        return RunEnding(int(content["step"]), str(content["because"]))
    except (UnreadableError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot read {file}, which says that the run is finished: {error}",
            remedy="remove it and start the run again: if nothing is left to do, the run writes it again",
        ) from error


def write_ending(run_dir: Path, ending: RunEnding) -> None:
    """Write that the run has ended, and why. CheckpointError if the folder cannot be written."""
    with disk_errors(f"write to {run_dir}", run_dir, CheckpointError):
        write_text_atomically(run_dir / ENDING_FILE, json.dumps(asdict(ending), indent=2) + "\n")
