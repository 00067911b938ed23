"""Steps shared by the commands that train: `burnish rl`, `sft` and `rm`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.trainers.result import RunResult


def train_from_file(kind: str, file: str, overrides: Sequence[str], *, fresh: bool, accept_changes: bool) -> None:
    """Train as the run file says, and print where the results are. A process of torchrun that only serves does so."""
    from burnish.api.training import move_aside, trained
    from burnish.checkpointing.sources import check_output
    from burnish.cli.output import training_console
    from burnish.cli.silence import silence_transformers
    from burnish.config.loading import load_run_file
    from burnish.distributed.nodes import job_without_folder
    from burnish.observability.console import say

    if served_as_rank(fresh=fresh):
        return
    console = training_console()
    if warning := job_without_folder():  # first: it may be why there is no run file
        say(console, (f"warning: {warning}",))
    loaded = load_run_file(file, overrides, kind)
    if fresh:
        check_output(loaded.config)
        move_aside(Path(loaded.config.output), console)
    silence_transformers()
    show_result(trained(loaded, console, accept_changes=accept_changes, lasting=True), console)


def served_as_rank(*, fresh: bool) -> bool:
    """Whether this process is one that only serves: that of a trainer or rollout worker, which has done so when this
    returns. It opens nothing of the run by itself; the process with rank 0 tells it what to hold.

    ConfigError for `--fresh` where torchrun may start the command again, because it would begin anew each time.
    """
    from burnish.config.torchrun import TorchrunRank

    here = TorchrunRank.here()
    if here is None:
        return False
    if here.rank == 0:
        if fresh and here.max_restarts:
            raise ConfigError(
                f"--fresh with torchrun --max-restarts {here.max_restarts} would start over at every restart",
                remedy="move the earlier run's folder away, or set `output` to another one",
            )
        return False
    from burnish.distributed.rank_server import serve_rank

    serve_rank(here)
    return True


def show_result(result: RunResult, console: Console) -> None:
    """Print where the results are, and what to do next."""
    state = "stopped" if result.stopped else "finished"
    lines = [
        f"{state} at step {result.step}",
        f"  model    {result.weights}",
        f"  metrics  {result.folder / 'metrics.jsonl'}",
    ]
    lines.append(f"  next     burnish report {result.folder}")
    if result.stopped:
        lines.append("  to continue, run the same command again")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
