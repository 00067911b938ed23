"""`burnish bisect A B`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

EXIT_DIFFERENT = 1
RunFolder = Annotated[str, typer.Argument(metavar="A", help="Folder of a run.", show_default=False)]
OtherFolder = Annotated[str, typer.Argument(metavar="B", help="Folder of another run.", show_default=False)]
Tolerance = Annotated[
    float, typer.Option(help="Relative difference up to which two numbers count as equal.", min=0.0, max=1.0)
]


def bisect(first: RunFolder, second: OtherFolder, tolerance: Tolerance = 0.0) -> None:
    """Find the first step and quantity in which two runs differ.

    Steps are compared in the order of computation: prompts, sampled tokens,
    log-probabilities, rewards, advantages, loss, gradient norm, other metrics,
    and weights if both runs kept a checkpoint. Without a tolerance, every bit
    counts. The exit code is 1 if a step differs.

    [bold]Examples[/bold]
    burnish bisect runs/first runs/second
    burnish bisect runs/cpu runs/gpu --tolerance 1e-3
    """

    from burnish.checkpointing.comparing import common_steps, different_settings, first_difference
    from burnish.observability.console import say

    console, folders = Console(), (Path(first), Path(second))
    settings = [f"  {one.field}: {one.before!r} in A, {one.now!r} in B" for one in different_settings(*folders)]
    say(console, [f"A: {first}, B: {second}", *settings])
    steps = common_steps(*folders)
    compared = f"{len(steps):,} steps compared, {steps[0]:,} to {steps[-1]:,}"
    found = first_difference(*folders, steps, tolerance=tolerance)
    if found is None:
        say(console, [f"{compared}: no difference" + (f" beyond {tolerance:g}" if tolerance else "")])
        return
    say(console, [f"{compared}; first difference (A and B): {found}"])
    raise typer.Exit(EXIT_DIFFERENT)
