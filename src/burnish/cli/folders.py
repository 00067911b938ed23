"""Run folders on the command line: move an old run aside, load the configuration of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config.loading import LoadedConfig, load_run_data
from burnish.errors import CheckpointError

if TYPE_CHECKING:
    from rich.console import Console


def move_aside(output: str, console: Console) -> None:
    """Rename the folder of an earlier run, so that a new run can start. CheckpointError if that run is still active."""
    from burnish.checkpointing.moving import move_run_aside

    aside = move_run_aside(Path(output))
    if aside is not None:
        console.print(f"moved the earlier run to {aside}", markup=False)


def load_run(folder: Path, overrides: list[str]) -> LoadedConfig:
    """The configuration of a run of any kind, with `output` set to where its folder is now.

    Overrides that name held-out comparisons replace the part that `held_out_fraction` held out.
    """
    from burnish.checkpointing.run import RunDirectory
    from burnish.config.kinds import kind_of_data

    run = RunDirectory(folder)
    if not run.begun():
        raise CheckpointError(
            f"{folder} is not a run: it has no {run.config_file.name}",
            remedy="give a run file, or the `output` of a run file",
        )
    data = {**run.read_config(), "output": str(folder)}
    kind = kind_of_data(data)
    if kind == "rm" and any(override.lstrip("-").startswith("data.eval") for override in overrides):
        data["held_out_fraction"] = 0.0
    return load_run_data(data, overrides, kind, source=str(run.config_file))
