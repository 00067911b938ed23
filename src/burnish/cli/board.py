"""`burnish board [FOLDER ...]`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Host, Port, secret_in

Folders = Annotated[list[str] | None, typer.Argument(metavar="[FOLDER]...", help="Run folders, or folders of runs.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the key, of 16 characters or more.")
]
Control = Annotated[bool, typer.Option("--control", help="Let the page pause runs, save now, and stop after a step.")]


def show_board(
    folders: Folders = None,
    host: Host = "127.0.0.1",
    port: Port = 8265,
    key_variable: KeyVariable = None,
    control: Control = False,
) -> None:
    """Watch runs in a browser, during and after training: curves, groups, responses.

    It only reads files, so finished runs look the same, and a problem here
    cannot end a run. Without --host, nobody else can see it.

    [bold]Examples[/bold]
    burnish board
    burnish board runs/first runs/second
    """

    from burnish.board.answers import Board
    from burnish.board.runs import Runs
    from burnish.board.server import check_address, serve
    from burnish.outside.listening import listening, url_of

    key = secret_in(key_variable)
    check_address(host, key)
    board = Board(Runs.below(folders or ["runs"]), control)
    board.summaries()  # what takes long at first is done before anyone looks
    with listening(host, port) as listener, suppress(KeyboardInterrupt):
        Console().print(f"board  {url_of(listener, host)}", markup=False, highlight=False, soft_wrap=True)
        serve(board, listener, key)
