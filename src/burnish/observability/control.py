"""Requests to a run that trains, as files in its folder: whoever may write there may ask.

The loop heeds them between steps (`burnish.trainers.interrupt`); `burnish board --control` writes them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal, get_args

from burnish.observability.atomic import write_text_atomically

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
