"""`burnish pairs RUN`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from burnish.cli.arguments import RlRunFolder
from burnish.errors import ConfigError, DataError

Out = Annotated[Path, typer.Option(help="File to write; it must not exist yet.")]
Take = Annotated[Literal["best_worst", "all"], typer.Option(help="Best and worst of each group, or all its pairs.")]
Margin = Annotated[float, typer.Option(help="A pair's scores must differ by more than this.", min=0.0)]
Reward = Annotated[str | None, typer.Option(help="Label of the reward to compare by (default: the whole score).")]
Steps = Annotated[str | None, typer.Option(help="Recorded steps, such as 100-200 (default: all).")]


def write_pairs(
    run: RlRunFolder,
    out: Out = Path("pairs.jsonl"),
    take: Take = "best_worst",
    margin: Margin = 0.0,
    reward: Reward = None,
    steps: Steps = None,
) -> None:
    """Make pairs for `burnish prefer` from the scored groups of a run.

    From each group of recorded responses to a prompt, the better and the worse
    one form a row with prompt, answer, chosen, rejected and margin.

    [bold]Examples[/bold]
    burnish pairs runs/first
    burnish pairs runs/first --take all --margin 0.5 --reward math
    burnish prefer prefer.yaml data.train=pairs.jsonl
    """
    from burnish.observability.atomic import write_text_atomically, writing
    from burnish.observability.console import say
    from burnish.observability.scored_pairs import PairRule, described, pairs_of_run

    if out.exists():
        raise ConfigError(f"{out} exists already", remedy="name another file with --out, or remove it")
    rule = PairRule(take, margin, reward)
    found = pairs_of_run(Path(run), rule, None if steps is None else _range(steps))
    console = Console()
    say(console, list(described(found)))
    if not found.rows:
        raise DataError("no pair was found", remedy="lower --margin, or take a run whose responses differ in score")
    with writing(out):
        write_text_atomically(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows))
    console.print(f"written to {out}", highlight=False, markup=False)


def _range(text: str) -> range:
    """Parse `100-200`, or a single step."""
    numbers: Sequence[str] = text.split("-")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--steps is {text!r}", remedy="write it as 100-200, or as a single step")
    return range(int(numbers[0]), int(numbers[-1]) + 1)
