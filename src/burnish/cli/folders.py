"""Run folders on the command line: moving an old run aside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def move_aside(output: str, console: Console) -> None:
    """Rename an earlier run's folder, so that a new run can start and nothing is lost; never that of a live run."""
    from burnish.checkpointing.moving import move_run_aside

    aside = move_run_aside(Path(output))
    if aside is not None:
        console.print(f"moved the earlier run to {aside}", markup=False)
