"""`burnish report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from burnish.errors import BurnishError

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of one or more runs.", show_default=False)]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", help="File to write (default: RUN/report.html; for several runs, comparison.html next to the first)."
    ),
]


def write_report(runs: Runs, out: Out = None) -> None:
    """Write one page with the curves and rollouts of a run, or of several runs overlaid.

    The page is self-contained, so it can be sent to someone else. The run may
    still be in progress.

    [bold]Examples[/bold]
    burnish report runs/first
    burnish report runs/first --out first.html
    burnish report runs/grpo runs/rloo
    """

    from burnish.board import report
    from burnish.outside.reading import folder_problem, reading

    folders = [Path(run) for run in runs]
    for folder in folders:
        if problem := folder_problem(folder):
            raise BurnishError(f"run folder {str(folder)!r} {problem}", remedy="give the `output` of a run file")
    named = ", ".join(map(str, folders))
    with reading(f"run folder {named}: writing its report", remedy="fix or remove the damaged file"):
        page = report.write_report(*folders, out=None if out is None else Path(out))
    Console().print(f"report  {page}", markup=False, highlight=False, soft_wrap=True)
