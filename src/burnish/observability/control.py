"""Files in a run's folder: requests to it while it trains, and the record that it has ended.

Anyone who can write there can ask, as `burnish board --control` does; the loop acts on requests between steps
(`burnish.trainers.interrupt`). The last step alone does not show that a run has ended: some stop early, or by passes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from burnish.errors import CheckpointError
from burnish.observability.atomic import disk_errors, write_text_atomically
from burnish.outside.reading import UnreadableError, read_json

Request = Literal["pause", "save", "stop"]
REQUESTS: tuple[Request, ...] = get_args(Request)
"""Wait as long as the file is there, save a checkpoint now, or end after this step."""
FOLDER = "control"


def ask(run_dir: Path, request: Request) -> None:
    """Ask for it, from the end of the present step on. OSError if the folder cannot be written to."""
    write_text_atomically(run_dir / FOLDER / request, time.strftime("%Y-%m-%dT%H:%M:%S%z\n"))


def is_asked(run_dir: Path, request: Request) -> bool:
    """Return whether there is such a request."""
    return (run_dir / FOLDER / request).is_file()


def take(run_dir: Path, request: Request) -> bool:
    """Withdraw a request, and return whether there was one. One that cannot be removed counts as none: else it would be
    heeded for ever, and an error of its folder must not end a run."""
    try:
        (run_dir / FOLDER / request).unlink()
    except OSError:
        return False
    return True


def asked(run_dir: Path) -> list[Request]:
    """Return the present requests."""
    return [request for request in REQUESTS if is_asked(run_dir, request)]


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
