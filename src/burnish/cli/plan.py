"""`burnish plan FILE`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from burnish.cli.arguments import Overrides, RunFile
from burnish.config.loading import LoadedConfig

if TYPE_CHECKING:
    from rich.console import Console

    from burnish.planning.plan import Plan

All = Annotated[bool, typer.Option("--all", help="List every value of the configuration, including defaults.")]


def show_plan(file: RunFile, overrides: Overrides = None, all_values: All = False) -> None:
    """Show what a run will do, without doing it.

    Shows prompts, rollouts, minibatches, optimizer steps, models and memory,
    and where each value comes from. Nothing is downloaded and no weights are
    loaded: sizes come from the model's config.json. Local data and rewards
    are read, and what burnish rl, sft or rm would refuse is refused here too.

    [bold]Examples[/bold]
    burnish plan run.yaml
    burnish plan run.yaml algorithm=dapo rollout.group_size=16
    burnish plan run.yaml --all
    """
    from rich.console import Console

    from burnish.api.planning import plan_of
    from burnish.cli.run_files import load_any_run_file

    loaded = load_any_run_file(file, overrides or ())
    console = Console()
    notes: list[str] = []
    plan = plan_of(loaded, notes)
    _show_lines(plan, console)
    _show_models(plan, loaded, console)
    _show_values(loaded, console, all_values)
    for warning in (*plan.warnings, *notes):
        console.print(f"[yellow]note[/] {_escaped(warning)}", soft_wrap=True)


def _show_lines(plan: Plan, console: Console) -> None:
    from rich.table import Table

    for topic in dict.fromkeys(line.topic for line in plan.lines):
        table = Table("what", "how many", "because", title=topic, title_justify="left", expand=False)
        for line in plan.lines:
            if line.topic == topic:
                table.add_row(line.name, line.value, line.because)
        console.print(table)


def _show_models(plan: Plan, loaded: LoadedConfig, console: Console) -> None:
    from rich.table import Table

    models = Table("model", "why it is loaded", title=f"models ({loaded.config.model.path})", title_justify="left")
    for role in plan.models:
        models.add_row(role.role, role.because)
    console.print(models)
    if not plan.memory:
        return
    memory = Table("memory (estimate)", "size", "from", title="memory", title_justify="left")
    for item in plan.memory:
        memory.add_row(item.name, bytes_in_words(item.num_bytes), item.formula)
    because = "cache and activations are not needed at the same time"
    memory.add_row("together, at most", bytes_in_words(plan.memory_bytes), because)
    console.print(memory)


def _show_values(loaded: LoadedConfig, console: Console, all_values: bool) -> None:
    from rich.table import Table

    table = Table("value", "", "from", title="configuration", title_justify="left")
    for path, value, origin in _values(loaded):
        if all_values or origin != "default":
            table.add_row(path, _escaped(value), origin)
    console.print(table)


def _values(loaded: LoadedConfig) -> Iterable[tuple[str, str, str]]:
    from burnish.config.secrets import masked
    from burnish.config.writing import flat_values

    values = flat_values(loaded.config)
    for path, origin in loaded.provenance.items():
        yield path, str(masked(values[path], place=path)), origin


def bytes_in_words(number: float) -> str:
    """`1.5 GiB` and the like."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
