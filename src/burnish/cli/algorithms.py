"""`burnish algorithms [NAME]`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from burnish.cli.tables import WIDE, show_table
from burnish.config import names
from burnish.config.presets import PRESETS, RM_PRESETS, Preset
from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.algorithms.registry import Formula

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="A preset, an estimator or a loss.", show_default=False)
]


def show_algorithms(name: Name = None) -> None:
    """List the algorithms, or explain one: formulas, sources and preset.

    [bold]Examples[/bold]
    burnish algorithms
    burnish algorithms dapo
    burnish algorithms cispo
    burnish algorithms simpo
    """
    console = Console()
    if name is None:
        return _table(console)
    if names.ALIASES.get(name) in PRESETS:
        name = names.ALIASES[name]
    known = dict.fromkeys((*PRESETS, *names.ESTIMATOR_NAMES, *names.LOSS_NAMES, *names.PAIR_LOSSES))
    if name not in known:
        raise ConfigError(f"there is no algorithm called {name!r}", remedy=names.suggested(name, known))
    if name in PRESETS:
        _preset(PRESETS[name], console)
        if name in RM_PRESETS:
            _values(RM_PRESETS[name], f"its reward model: preset: {name} in a run file of burnish rm", console)
    else:
        _formulas(name, name, console)
    return None


def _table(console: Console) -> None:
    headings: Sequence[str] = ("preset", "estimator", "loss", "aggregation", "KL", "what it is")
    rows: list[Sequence[str]] = [_cells(preset) for preset in PRESETS.values()]
    if console.is_terminal and console.width < WIDE:  # what is left out, NAME shows
        left = console.width - max(map(len, PRESETS)) - 2
        headings, rows = ("preset", "what it is"), [(row[0], shorten(row[-1], left, placeholder=" …")) for row in rows]
    show_table(console, headings, rows)
    losses = [
        (name, "yes" if name in names.REFERENCE_LOSSES else "none", ", ".join(options))
        for name, options in names.PAIR_LOSSES.items()
    ]
    show_table(console, ("loss", "reference", "numbers"), losses, title="preferences")
    console.print(
        "burnish algorithms NAME explains one; to use a preset, set `algorithm: NAME` in the run file",
        markup=False,
        soft_wrap=True,
    )


def _cells(preset: Preset) -> tuple[str, ...]:
    estimator, loss, aggregation, kl_in = (value(preset, w) for w in ("estimator", "loss", "aggregation", "kl_in"))
    kl = "none" if kl_in == "none" else f"{kl_in} {value(preset, 'kl_estimator')} {value(preset, 'kl_coef'):g}"
    return preset.name, estimator, loss, aggregation, kl, preset.summary


def value(preset: Preset, field: str) -> Any:
    """The value of a field of `algorithm` with this preset: the preset's value or the default."""
    from burnish.config.schema import AlgorithmConfig

    default = AlgorithmConfig.model_fields[field].get_default(call_default_factory=True)
    return preset.values.get(f"algorithm.{field}", default)


def _preset(preset: Preset, console: Console) -> None:
    console.print(f"[bold]{preset.name}[/]  {preset.summary}\n{preset.source}\n", highlight=False, soft_wrap=True)
    _values(preset, "what it sets", console)
    _formulas(value(preset, "estimator"), value(preset, "loss"), console)


def _values(preset: Preset, title: str, console: Console) -> None:
    show_table(console, ("field", "value"), [(field, str(one)) for field, one in preset.values.items()], title=title)


def _formulas(estimator: str, loss: str, console: Console) -> None:
    from burnish.algorithms.advantages import ESTIMATORS
    from burnish.algorithms.pair_losses import resolve_pair_loss
    from burnish.algorithms.policy_losses.table import POLICY_LOSSES

    if estimator in ESTIMATORS:
        _row("estimator", ESTIMATORS[estimator], console)
    if loss in POLICY_LOSSES:
        _row("loss", POLICY_LOSSES[loss], console)
    if loss in names.PAIR_LOSSES:
        _row("loss on preferences", resolve_pair_loss(loss), console)


def _row(kind: str, row: Formula, console: Console) -> None:
    options = [*row.required_options, *(f"{name}={one}" for name, one in row.options.items() if name != "allow_single")]
    numbers = [f"  numbers: {', '.join(options)}"] if options else []
    for line in (f"{kind} {row.name}: {row.summary}", f"  {row.formula}", f"  {row.source}", *numbers, ""):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
