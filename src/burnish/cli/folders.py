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
    """The configuration that a run was started with. Its `output` is where the folder lies now."""
    from burnish.checkpointing.run import RunDirectory

    run = RunDirectory(folder)
    if not run.begun():
        raise CheckpointError(
            f"{folder} is no run: it has no {run.config_file.name}",
            remedy="give a run file, or the folder that `output` of a run file names",
        )
    data = {**run.read_config(), "output": str(folder)}
    return load_run_data(data, overrides, "rl", source=str(run.config_file))


def checkpoint_weights(folder: Path, step: int | None) -> tuple[int, Path]:
    """Step and weights folder of a checkpoint of a run: that of `step`, or the newest whole one."""
    from burnish.checkpointing.store import CheckpointStore
    from burnish.trainers.result import WEIGHTS_FOLDER

    store = CheckpointStore(folder)
    if step is None:
        found = store.latest_valid().checkpoint
        if found is None:
            raise CheckpointError(f"{folder} has no whole checkpoint", remedy="train first, or give the run file")
        return found.step, found.folder / WEIGHTS_FOLDER
    if step not in store.steps():
        known = ", ".join(map(str, store.steps())) or "none"
        raise CheckpointError(f"{folder} has no checkpoint of step {step}", remedy=f"there is: {known}")
    return step, folder / "checkpoints" / f"step-{step:06d}" / WEIGHTS_FOLDER
