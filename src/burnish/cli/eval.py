"""`burnish eval FILE|RUN`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.cli.arguments import Overrides

if TYPE_CHECKING:
    from rich.table import Table

Target = Annotated[str, typer.Argument(metavar="FILE|RUN", help="Run file, or folder of a run.", show_default=False)]
Step = Annotated[int | None, typer.Option(help="Evaluate the checkpoint of this step (default: the newest).")]


def evaluate(target: Target, overrides: Overrides = None, step: Step = None) -> None:
    """Measure a model on the held-out data, in all and by domain.

    Greedy responses, and with evaluation.samples also pass@k and maj@k. A run file
    evaluates the model it names, a run folder its newest checkpoint.

    [bold]Examples[/bold]
    burnish eval run.yaml evaluation.samples=8
    burnish eval runs/first
    burnish eval runs/first --step 50 evaluation.max_prompts=null
    """
    from rich.console import Console

    from burnish.cli.folders import checkpoint_weights, load_run
    from burnish.cli.silence import silence_transformers
    from burnish.config.loading import load_run_file

    console, weights = Console(), None
    if Path(target).is_dir():
        loaded = load_run(Path(target), overrides or [])
        number, weights = checkpoint_weights(Path(target), step)
        console.print(f"checkpoint of step {number}: {weights}", markup=False)
    elif step is not None:
        raise typer.BadParameter("only a run folder has checkpoints", param_hint="--step")
    else:
        loaded = load_run_file(target, overrides or (), "rl")
    from burnish.trainers.run import evaluate_run

    silence_transformers()
    report = evaluate_run(loaded.rl, console=console, weights=weights)
    console.print(metrics_table(report.metrics))
    console.print(f"metrics    {report.metrics_file}\nresponses  {report.rollouts_file}", markup=False, soft_wrap=True)


def metrics_table(metrics: Mapping[str, float]) -> Table:
    """One row a metric, one column for all prompts and one for each domain."""
    from rich.table import Table

    columns: dict[str, dict[str, float]] = {"all": {}}
    for name, value in metrics.items():
        word = name.removeprefix("eval/")
        domain = "all"
        if word.startswith("domain/"):
            domain, _, word = word.removeprefix("domain/").rpartition("/")
        columns.setdefault(domain, {})[word] = value
    table = Table("metric", *columns, title="held-out evaluation")
    for word in columns["all"]:
        table.add_row(word, *(_number(column.get(word)) for column in columns.values()))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
