"""`burnish verify RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from burnish.cli.bisect import EXIT_DIFFERENT

RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Starts = Annotated[
    list[int] | None,
    typer.Option("--step", help="Checkpoint to start from; may be repeated (default: all; 0: the beginning).", min=0),
]
Count = Annotated[
    int | None, typer.Option(help="Steps to repeat after each checkpoint (default: up to the next one).", min=1)
]


def verify(run: RunFolder, starts: Starts = None, count: Count = None) -> None:
    """Repeat recorded steps from checkpoints, and show whether they reproduce.

    Metrics (without times), rollouts and weights must match bit for bit. The
    work is done in a temporary folder, and the run does not change. The exit
    code is 1 if a step differs.

    [bold]Examples[/bold]
    burnish verify runs/first
    burnish verify runs/first --step 100 --count 2
    """

    from burnish.api.run import run_config
    from burnish.models.loading_bars import hide_loading_bars
    from burnish.observability.console import say
    from burnish.trainers.verifying import spans_of, verify_span

    console, differs = Console(), False
    config = run_config(Path(run)).config
    hide_loading_bars()
    for span in spans_of(Path(run), starts or [], count):
        difference, changes = verify_span(config, span)
        if difference is None:
            say(console, [f"{span}: the same, bit for bit"])
            continue
        differs = True
        lines = (f"  since then: {change}" for change in changes)
        say(console, [f"{span}: first difference (recorded and now): {difference}", *lines])
    if differs:
        raise typer.Exit(EXIT_DIFFERENT)
