"""Requests to a run that trains, as files in its folder: whoever may write there may ask.

The loop looks at them between steps (`burnish.trainers.control`); `burnish board --control` writes them.
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


def withdraw(run_dir: Path, request: Request) -> None:
    """Take the request back; nothing changes if there is none. OSError if the folder cannot be written to."""
    (run_dir / FOLDER / request).unlink(missing_ok=True)


def asked(run_dir: Path) -> list[Request]:
    """Return the present requests."""
    return [request for request in REQUESTS if (run_dir / FOLDER / request).exists()]
