"""The results that the demo shows at its end: curve, numbers, some problems before and after, and next steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from burnish.board.report import write_report
from burnish.cli.tables import show_table
from burnish.demo import RL_STEPS, DemoFolder
from burnish.observability.history import read_history
from burnish.observability.recorder import read_rollouts

ACCURACY = "eval/accuracy"
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One held-out problem, and the model's answers before and after GRPO (with the ones first)."""

    prompt: str
    answer: str
    before: str
    after: str

    @property
    def corrected(self) -> bool:
        return self.before != self.answer == self.after

    @property
    def kept(self) -> bool:
        return self.before == self.answer == self.after

    @property
    def still_wrong(self) -> bool:
        return self.after != self.answer


def show(folder: DemoFolder, console: Console) -> None:
    """Show the results of a finished demo."""
    steps, accuracies = read_history(folder.rl_run)[ACCURACY]
    attempts = read_attempts(folder, steps[0], steps[-1])
    page = write_report(folder.rl_run)
    console.print("\n[bold]4  Results[/]\n")
    curve = plot_curve(steps, accuracies, title="share of held-out problems answered right (greedy), by GRPO step")
    console.print(curve, markup=False, highlight=False)
    console.print(f"\n   [bold]{accuracies[0]:.1%} -> {accuracies[-1]:.1%}[/] of {len(attempts)} held-out problems\n")
    show_attempts(attempts, console)
    for line in (*counts(attempts), *next_steps(folder, page)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def read_attempts(folder: DemoFolder, first_step: int, last_step: int) -> list[Attempt]:
    """The greedy answers to the held-out problems at two evaluations of the RL run."""
    before, after = (
        {entry["prompt"]: entry for entry in read_rollouts(folder.rl_run / "rollouts" / f"eval-{step:06d}.jsonl")}
        for step in (first_step, last_step)
    )
    return [
        Attempt(prompt, entry["answer"], entry["response"], after[prompt]["response"])
        for prompt, entry in before.items()
    ]


def chosen(attempts: Sequence[Attempt]) -> list[Attempt]:
    """A few examples: mostly answers that became right, one that was right before, and one that is still wrong."""
    corrected = [attempt for attempt in attempts if attempt.corrected][:4]
    kept = [attempt for attempt in attempts if attempt.kept][:1]
    return [*corrected, *kept, *[attempt for attempt in attempts if attempt.still_wrong][:1]]


def show_attempts(attempts: Sequence[Attempt], console: Console) -> None:
    """Print the chosen problems, with the digits of the answers reversed into the usual order."""
    rows = [(one.prompt, *(text[::-1] for text in (one.answer, one.before, one.after))) for one in chosen(attempts)]
    headings = ("problem", "right answer", "before GRPO", "after")
    show_table(console, headings, rows, title="answers, reversed for reading")


def counts(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Count the held-out problems that became right, stayed right, stayed wrong and became wrong."""
    corrected, kept = sum(a.corrected for a in attempts), sum(a.kept for a in attempts)
    unlearned = sum(a.still_wrong and a.before == a.answer for a in attempts)
    wrong = sum(a.still_wrong for a in attempts) - unlearned
    yield f"became right {corrected}, stayed right {kept}, stayed wrong {wrong}, became wrong {unlearned}"


def program() -> str:
    """The program that was started, so that printed commands can be copied (`make demo` uses a path)."""
    started = sys.argv[0]
    return started if Path(started).name == "burnish" else "burnish"


def next_steps(folder: DemoFolder, page: Path) -> list[str]:
    """List the places of the results, and commands to try."""
    burnish = program()
    return [
        "",
        f"report     {page}  (open it in a browser: all curves, and the rollouts of each problem)",
        f"model      {folder.rl_run / 'checkpoints'}  (each loads with from_pretrained)",
        "",
        "next",
        f"  {burnish} rl {folder.rl_file} steps={RL_STEPS + 30}    continue for 30 more steps",
        f"  {burnish} rl {folder.rl_file} algorithm.preset=rloo output={folder.path / 'rloo'}    another algorithm",
        f"  {burnish} plan {folder.rl_file}    what a run will do, before it does it",
        f"  {burnish} eval {folder.rl_run} evaluation.samples=8    pass@k and majority votes",
        f"  {burnish} algorithms    list them all; then write a run file for your own model and data",
    ]


def plot_curve(steps: Sequence[float], values: Sequence[float], title: str, width: int = 60, height: int = 12) -> str:
    """A curve as columns of eighths of a character: `height` lines of `width` characters, with the range of values on
    the left and steps below."""
    low, high = _range(values)
    drawn = np.interp(np.linspace(steps[0], steps[-1], width), steps, values)
    eighths = np.rint((drawn - low) / (high - low) * (8 * height - 1)).astype(int) + 1  # at least one, so that it shows
    rows = [np.clip(eighths - 8 * row, 0, 8) for row in reversed(range(height))]
    lines = ["".join(_EIGHTHS[count] for count in row) for row in rows]
    return "\n".join([title, *_framed(lines, low, high, steps, width)])


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.0 if low < high else abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _framed(lines: Sequence[str], low: float, high: float, steps: Sequence[float], width: int) -> Iterator[str]:
    labels = {0: f"{high:.4g}", len(lines) // 2: f"{(low + high) / 2:.4g}", len(lines) - 1: f"{low:.4g}"}
    margin = max(len(label) for label in labels.values())
    for row, line in enumerate(lines):
        tick = "┤" if row in labels else "│"
        yield f"{labels.get(row, ''):>{margin}} {tick}{line}"
    yield " " * margin + " └" + "─" * width
    first, last = f"{min(steps):g}", f"step {max(steps):g}"
    yield " " * (margin + 2) + first + last.rjust(width - len(first))
