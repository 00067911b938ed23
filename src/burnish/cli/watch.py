"""`burnish watch [FOLDER ...]`."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.errors import ConfigError

Folders = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Folders that hold runs, or are one.")]


def watch_runs(folders: Folders = None) -> None:
    """Watch runs in a terminal, also over ssh: curves, groups, responses.

    Enter leads from a run to its curves, to the groups of its last step and to
    their responses; escape leads back, the arrows walk the steps.

    [bold]Examples[/bold]
    burnish watch
    burnish watch runs/first
    """

    from burnish.board.runs import Runs

    try:
        from burnish.board.terminal import WatchApp
    except ImportError as error:
        raise ConfigError("burnish watch needs textual", remedy="pip install 'burnish[watch]'") from error
    WatchApp(Runs.below(folders or ["runs"])).run()
