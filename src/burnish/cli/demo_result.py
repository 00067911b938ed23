"""The results that the demo shows at its end: curve, numbers, some problems before and after, and next steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.demo import RL_STEPS, DemoFolder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ACCURACY = "eval/accuracy"


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
    from burnish.observability.history import read_history
    from burnish.report.plots import plot_curve
    from burnish.report.report import write_report

    steps, accuracies = read_history(folder.rl_run)[ACCURACY]
    attempts = read_attempts(folder, steps[0], steps[-1])
    page = write_report(folder.rl_run)
    console.print("\n[bold]4  Results[/]\n")
    curve = plot_curve(steps, accuracies, title="share of held-out problems answered right (greedy), by GRPO step")
    console.print(curve, markup=False, highlight=False)
    console.print(f"\n   [bold]{accuracies[0]:.1%} -> {accuracies[-1]:.1%}[/] of {len(attempts)} held-out problems\n")
    console.print(attempts_table(attempts))
    for line in (*counts(attempts), *next_steps(folder, page)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def read_attempts(folder: DemoFolder, first_step: int, last_step: int) -> list[Attempt]:
    """The greedy answers to the held-out problems at two evaluations of the RL run."""
    from burnish.observability.recorder import read_rollouts

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


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    """The chosen problems, with the digits of the answers reversed into the usual order."""
    from rich.table import Table

    table = Table("problem", "right answer", "before GRPO", "after", title="answers, reversed for reading")
    for attempt in chosen(attempts):
        table.add_row(attempt.prompt, *(_marked(text, attempt.answer) for text in _texts(attempt)))
    return table


def _texts(attempt: Attempt) -> tuple[str, str, str]:
    return attempt.answer, attempt.before, attempt.after


def _marked(text: str, answer: str) -> str:
    from rich.markup import escape

    colour = "green" if text == answer else "red"
    return f"[{colour}]{escape(text[::-1])}[/]"


def counts(attempts: Sequence[Attempt]) -> Iterator[str]:
    """How many held-out problems became right, stayed right, stayed wrong and became wrong."""
    corrected, kept = sum(a.corrected for a in attempts), sum(a.kept for a in attempts)
    unlearned = sum(a.still_wrong and a.before == a.answer for a in attempts)
    wrong = sum(a.still_wrong for a in attempts) - unlearned
    yield f"became right {corrected}, stayed right {kept}, stayed wrong {wrong}, became wrong {unlearned}"


def program() -> str:
    """The program that was started, so that printed commands can be copied (`make demo` uses a path)."""
    started = sys.argv[0]
    return started if Path(started).name == "burnish" else "burnish"


def next_steps(folder: DemoFolder, page: Path) -> list[str]:
    """Where the results are, and commands to try."""
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
