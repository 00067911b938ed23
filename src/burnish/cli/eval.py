"""`burnish eval FILE|RUN`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import Overrides
from burnish.cli.tables import show_table
from burnish.observability.console import with_interval

Target = Annotated[str, typer.Argument(metavar="FILE|RUN", help="Run file, or folder of a run.", show_default=False)]
Step = Annotated[int | None, typer.Option(help="Evaluate the checkpoint of this step (default: the newest).")]


def evaluate(target: Target, overrides: Overrides = None, step: Step = None) -> None:
    """Measure a model on the held-out data, overall and by domain.

    For `rl`: rewards of greedy responses, and accuracy with a 95 % interval
    over the prompts; with evaluation.samples also pass@k and maj@k. For `sft`
    and `distill`: loss and perplexity. For `rm` and `prefer`: accuracy with an
    interval over the comparisons. Give a run file to measure the model it
    names, or a run folder to measure its newest checkpoint. Each evaluation
    gets a new folder RUN/eval/NNN.

    [bold]Examples[/bold]
    burnish eval run.yaml evaluation.samples=8
    burnish eval runs/first
    burnish eval runs/first@best evaluation.max_prompts=null
    burnish eval runs/rm --step 50 data.eval=other_pairs.jsonl
    """

    from burnish.api.evaluating import measured
    from burnish.api.run import ONLY_TRAINS, no_run, run_config, with_saved_tokenizer
    from burnish.checkpointing.chaining import find_checkpoint
    from burnish.cli.arguments import load_any_run_file
    from burnish.models.loading_bars import hide_loading_bars

    console, weights = Console(), None
    name = target if step is None else f"{target}@{step}"
    if Path(target).is_dir() or ("@" in target and not Path(target).is_file()):
        if step is not None and not Path(target).is_dir():
            raise typer.BadParameter(f"{target} names a checkpoint already", param_hint="--step")
        chosen = find_checkpoint(name, field="the run to evaluate")
        if chosen is None:
            raise no_run(Path(target))
        from burnish.trainers.result import WEIGHTS_FOLDER

        words = overrides or []
        config = with_saved_tokenizer(run_config(chosen.run, words, idle=ONLY_TRAINS).config, words)
        weights = chosen.checkpoint.folder / WEIGHTS_FOLDER
        console.print(str(chosen), markup=False, soft_wrap=True)
    elif step is not None:
        raise typer.BadParameter("only a run folder has checkpoints", param_hint="--step")
    else:
        config = load_any_run_file(target, overrides or ()).config
    hide_loading_bars()
    report = measured(config, console, weights)
    headings, *rows = metrics_table(report.metrics)
    show_table(console, headings, rows, title="held-out evaluation")
    console.print(f"metrics    {report.metrics_file}", markup=False, soft_wrap=True)
    if report.rollouts_file is not None:
        console.print(f"responses  {report.rollouts_file}", markup=False, soft_wrap=True)


def metrics_table(metrics: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Headings, and a row for each metric, with its 95 % interval if it has one, and a column for all prompts and for
    each domain."""
    columns: dict[str, dict[str, float]] = {"all": {}}
    for name, value in metrics.items():
        word = name.removeprefix("eval/")
        domain = "all"
        if word.startswith("domain/"):
            domain, _, word = word.removeprefix("domain/").rpartition("/")
        columns.setdefault(domain, {})[word] = value
    words = dict.fromkeys(word for column in columns.values() for word in column)
    ends = {f"{word}{end}" for word in words for end in ("_low", "_high")}
    shown = [word for word in words if word not in ends]
    rows = [(word, *(with_interval(column, word, ".4g") for column in columns.values())) for word in shown]
    return [("metric", *columns), *rows]
