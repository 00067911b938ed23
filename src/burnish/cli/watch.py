"""`burnish watch [FOLDER ...]`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from burnish.errors import ConfigError, needing

Folders = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Run folders, or folders of runs.")]


def watch_runs(folders: Folders = None) -> None:
    """Watch runs in a terminal, also over ssh: curves, groups, responses.

    Enter opens a run's curves, then the groups of its last step, then their
    responses. Escape goes back, and the arrow keys move between steps.

    [bold]Examples[/bold]
    burnish watch
    burnish watch runs/first
    """

    from burnish.board.runs import Runs

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("burnish watch needs a terminal", remedy="use burnish table, or burnish board for a browser")
    with needing("'burnish[watch]'", ConfigError, "burnish watch needs textual"):
        from burnish.board.terminal import WatchApp
    WatchApp(Runs.below(folders or ["runs"])).run()
