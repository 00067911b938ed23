"""`burnish table RUN...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from burnish.errors import ConfigError

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Folders of runs, or of a sweep.", show_default=False)
]
Metric = Annotated[
    str | None,
    typer.Option(help="Metric to compare (default: the one that chooses the best checkpoint).", show_default=False),
]
By = Annotated[
    list[str] | None,
    typer.Option(help="Field to compare, such as algorithm (default: all that differ, except the seed)."),
]
At = Annotated[int | None, typer.Option(help="Compare the values at this step (default: the last of each run).")]
Threshold = Annotated[float | None, typer.Option(help="Also show the steps and tokens until the metric reaches this.")]
Baseline = Annotated[str | None, typer.Option(help="Group to compare the others with (default: the first).")]
Format = Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")]
FigureFile = Annotated[Path | None, typer.Option(help="Also plot the curves with bands to this .svg, .png or .pdf.")]


def show_table(
    runs: Runs,
    metric: Metric = None,
    by: By = None,
    threshold: Threshold = None,
    step: At = None,
    baseline: Baseline = None,
    form: Format = "text",
    figure: FigureFile = None,
) -> None:
    """Compare a metric of several runs: means, intervals, paired differences.

    Differences between runs are read from their configurations. Runs that
    differ only in seed form a group, with a mean and its 95 % interval
    (Student's t). Groups are compared run by run: runs with the same seed share
    prompts and noise, which narrows the interval of the difference.

    [bold]Examples[/bold]
    burnish table runs/sweep --threshold 0.9
    burnish table runs/* --metric eval/accuracy --by algorithm
    burnish table runs/* --format latex --figure curves.svg
    """
    from burnish.experiments.formats import CSV, FORMATS
    from burnish.experiments.table import table

    if form not in (*FORMATS, CSV):
        raise ConfigError(f"--format is {form!r}", remedy=f"choose from {', '.join((*FORMATS, CSV))}")
    found = table(runs, metric, by=by or (), threshold=threshold, step=step, baseline=baseline)
    if figure is not None:
        found.figure(figure)
    typer.echo(found.written(form))
    if figure is not None:
        typer.echo(f"figure  {figure}", err=form != "text")
