"""`burnish report RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.errors import BurnishError

Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Out = Annotated[str | None, typer.Option("--out", help="File to write (default: RUN/report.html).")]


def write_report(run: Run, out: Out = None) -> None:
    """Write one page with the curves and the rollouts of a run.

    It holds everything it needs, so it can be sent to someone else. A run that is
    still going on can be reported as well.

    [bold]Examples[/bold]
    burnish report runs/first
    burnish report runs/first --out first.html
    """
    from rich.console import Console

    from burnish.observability import report
    from burnish.reading import file_problem, reading

    folder = Path(run)
    problem = file_problem(folder)
    if problem != "is a folder, not a file":
        found = "is a file, not a folder" if problem is None else problem
        raise BurnishError(f"run folder {run!r} {found}", remedy="give what `output` of the run file names")
    with reading(f"run folder {run}: writing a report of it", remedy="mend or remove the file that is damaged"):
        page = report.write_report(folder, None if out is None else Path(out))
    Console().print(f"report  {page}", markup=False, highlight=False, soft_wrap=True)
