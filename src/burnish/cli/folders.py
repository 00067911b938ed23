"""Run folders on the command line: move an old run aside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def move_aside(output: str, console: Console) -> None:
    """Rename the folder of an earlier run, so that a new run can start. CheckpointError if that run is still active."""
    from burnish.checkpointing.moving import move_run_aside

    aside = move_run_aside(Path(output))
    if aside is not None:
        console.print(f"moved the earlier run to {aside}", markup=False)
