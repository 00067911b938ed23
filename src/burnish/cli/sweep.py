"""`burnish sweep FILE key=a,b ...`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from burnish.cli.arguments import RunFile

if TYPE_CHECKING:
    from burnish.experiments.sweep import SweptRun

EXIT_FAILED = 1

Choices = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="key.path=a,b,c", help="Values to combine (seed=0..4), and overrides for all runs.", show_default=False
    ),
]
Jobs = Annotated[int, typer.Option(help="Runs to train at the same time.", min=1)]
Together = Annotated[bool, typer.Option("--together", help="Take the n-th value of every field, not all combinations.")]
Listed = Annotated[
    Path | None, typer.Option("--runs", help="File with a YAML list of the fields of each run.", show_default=False)
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show all runs with their memory and time; start none.")]


def run_sweep(
    file: RunFile,
    choices: Choices = None,
    jobs: Jobs = 1,
    together: Together = False,
    listed: Listed = None,
    plan: PlanOnly = False,
) -> None:
    """Train one run for each combination of settings, for any kind of run.

    Each run gets a folder in `output`, named after its settings. All runs are
    checked before the first starts, and a failed run does not end the others.
    Ctrl-C finishes the current steps and saves. The same command skips finished
    runs and continues the rest.

    [bold]Values[/bold]
    [bold]seed=0..4[/bold]: 0, 1, 2, 3 and 4.
    [bold]algorithm=grpo,rloo[/bold]: split at commas outside quotes and brackets.
    [bold]steps=50[/bold]: a single value applies to all runs.

    [bold]Examples[/bold]
    burnish sweep run.yaml algorithm=grpo,rloo,dr_grpo seed=0..4 output=runs/sweep
    burnish sweep sft.yaml optimization.learning_rate=1e-3,1e-4 --plan
    burnish sweep run.yaml seed=0..4 cluster.threads=1 --jobs 2
    """
    from burnish.cli.arguments import load_any_run_file
    from burnish.experiments.settings import OUTPUT, read_listed, settings_of
    from burnish.experiments.sweep import checked_runs, train_all
    from burnish.observability.console import say

    words = choices or []
    chosen = settings_of(words, [] if listed is None else read_listed(listed), together=together)
    output = [word for word in words if word.partition("=")[0] == OUTPUT]
    runs = checked_runs(lambda overrides: load_any_run_file(file, overrides), chosen, output)
    console = Console()
    if plan:
        _show_plan(file, runs, jobs, console)
        return
    train_all(runs, file, jobs=jobs, say=lambda text: say(console, [text]))
    say(console, _conclusion(runs))
    if any(run.state == "failed" for run in runs):
        raise typer.Exit(EXIT_FAILED)
    if any(run.state in ("stopped", "waiting") for run in runs):
        from burnish.cli import EXIT_INTERRUPTED

        raise typer.Exit(EXIT_INTERRUPTED)


def _conclusion(runs: Sequence[SweptRun]) -> list[str]:
    """Summarise the runs, with all errors at the end, where they are read."""
    done = [run for run in runs if run.state in ("finished", "skipped")]
    failed = [run for run in runs if run.state == "failed"]
    lines = [f"{len(done)} of {len(runs)} runs are finished" + (f", {len(failed)} failed" if failed else "")]
    for run in failed:
        lines += [f"  {run.name}: {run.error}", f"    {run.log}"]
    if len(done) < len(runs):
        lines.append("  to go on with the rest, run the same command again")
    if done:
        lines.append(f"  next     burnish table {shlex.quote(str(runs[0].folder.parent))}")
    return lines


def _show_plan(file: str, runs: Sequence[SweptRun], jobs: int, console: Console) -> None:
    """A line for each run, and the hours and memory of all."""
    from burnish.api.planning import plan_of
    from burnish.cli.arguments import load_any_run_file
    from burnish.cli.tables import show_table
    from burnish.observability.console import duration, say
    from burnish.planning.memory import bytes_in_words

    lines, notes = list[list[str]](), dict[str, None]()
    seconds, most = 0.0, 0
    for run in runs:
        said: list[str] = []
        plan = plan_of(load_any_run_file(file, [*run.overrides, f"output={run.folder}"]), said)
        notes |= dict.fromkeys([*plan.warnings, *said])
        time = None if plan.time is None else plan.time.run_seconds
        memory = bytes_in_words(plan.memory_bytes) if plan.memory else "unknown"
        cells = [str(plan.steps or "unknown"), memory, "unknown" if time is None else duration(time)]
        lines.append([run.name, "finished" if run.state == "skipped" else "to do", *cells])
        if run.state != "skipped":
            seconds, most = seconds + (time or 0.0), max(most, plan.memory_bytes)
    show_table(console, ("run", "state", "steps", "memory", "time"), lines)
    shared = f" at a time, with up to {bytes_in_words(jobs * most)} of memory together" if jobs > 1 else ""
    say(console, [f"{len(runs)} runs, {jobs}{shared}" if jobs > 1 else f"{len(runs)} runs, one after the other"])
    if seconds:
        say(console, [f"about {duration(seconds / jobs)} in all (estimate)"])
    say(console, [f"note {note}" for note in notes])
