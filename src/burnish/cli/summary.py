"""The last lines that a training command prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.trainers.result import RunResult


def show_result(result: RunResult, console: Console) -> None:
    """Print where the results are, and what to do next."""
    state = "stopped" if result.stopped else "finished"
    lines = [
        f"{state} at step {result.step}",
        f"  model    {result.weights}",
        f"  metrics  {result.folder / 'metrics.jsonl'}",
    ]
    lines.append(f"  next     burnish report {result.folder}")
    if result.stopped:
        lines.append("  to continue, run the same command again")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
