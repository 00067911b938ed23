"""`burnish report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.errors import BurnishError

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Folders of one or several runs.", show_default=False)
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", help="File to write (default: RUN/report.html; of several runs comparison.html next to the first)."
    ),
]


def write_report(runs: Runs, out: Out = None) -> None:
    """Write one page with the curves and the rollouts of a run, or of several runs on top of each other.

    It holds everything it needs, so it can be sent to someone else. A run that is
    still going on can be reported as well.

    [bold]Examples[/bold]
    burnish report runs/first
    burnish report runs/first --out first.html
    burnish report runs/grpo runs/rloo
    """
    from rich.console import Console

    from burnish.reading import file_problem, reading
    from burnish.report import report

    folders = [Path(run) for run in runs]
    for folder in folders:
        problem = file_problem(folder)
        if problem != "is a folder, not a file":
            found = "is a file, not a folder" if problem is None else problem
            raise BurnishError(f"run folder {str(folder)!r} {found}", remedy="give what `output` of the run file names")
    named = ", ".join(map(str, folders))
    with reading(f"run folder {named}: writing a report of it", remedy="mend or remove the file that is damaged"):
        if len(folders) == 1:
            page = report.write_report(folders[0], None if out is None else Path(out))
        else:
            page = report.write_comparison(folders, Path(out) if out else folders[0].parent / "comparison.html")
    Console().print(f"report  {page}", markup=False, highlight=False, soft_wrap=True)
