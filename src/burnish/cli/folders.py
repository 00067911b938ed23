"""Run folders on the command line: moving an old run aside, finding what to evaluate in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config.loading import LoadedConfig, load_run_data
from burnish.errors import CheckpointError

if TYPE_CHECKING:
    from rich.console import Console


def move_aside(output: str, console: Console) -> None:
    """Rename an earlier run's folder, so that a new run can start and nothing is lost; never that of a live run."""
    from burnish.checkpointing.moving import move_run_aside

    aside = move_run_aside(Path(output))
    if aside is not None:
        console.print(f"moved the earlier run to {aside}", markup=False)


def load_run(folder: Path, overrides: list[str]) -> LoadedConfig:
    """The configuration that a run of any kind was started with. Its `output` is where the folder lies now.

    Overrides that name held-out comparisons take the place of the part that `held_out_fraction` held out.
    """
    from burnish.checkpointing.run import RunDirectory
    from burnish.config.kinds import kind_of_data

    run = RunDirectory(folder)
    if not run.begun():
        raise CheckpointError(
            f"{folder} is not a run: it has no {run.config_file.name}",
            remedy="give a run file, or the folder that `output` of a run file names",
        )
    data = {**run.read_config(), "output": str(folder)}
    kind = kind_of_data(data)
    if kind == "rm" and any(override.lstrip("-").startswith("data.eval") for override in overrides):
        data["held_out_fraction"] = 0.0
    return load_run_data(data, overrides, kind, source=str(run.config_file))
