"""The metrics of a run as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from burnish.observability.console import rich_table, table_of

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN_ROWS = 10


class MetricsTable(Mapping[str, list[float]]):
    """`run.metrics` if pandas is not installed: `table["reward/mean"]` has one number for each entry of `table.steps`,
    nan where the metric was not measured."""

    def __init__(self, rows: Sequence[Mapping[str, float]]) -> None:
        self._rows = list(rows)
        self.steps: list[int] = [int(row["step"]) for row in rows]
        self._names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self._names:
            raise KeyError(name)
        return [float(row.get(name, math.nan)) for row in self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return shown(self._rows)


def metrics_table(rows: Sequence[Mapping[str, float]]) -> DataFrame | MetricsTable:
    """A pandas table with the step as its index, or a `MetricsTable`."""
    try:
        import pandas
    except ImportError:
        return MetricsTable(rows)
    names = ["step", *dict.fromkeys(name for row in rows for name in row if name != "step")]
    return pandas.DataFrame(list(rows), columns=names).set_index("step")


def shown(rows: Sequence[Mapping[str, float]]) -> str:
    """The newest rows with the columns of the live display, as plain text."""
    lines = table_of(rows)
    console = Console(file=StringIO(), width=200, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(rich_table([lines[0], *lines[1:][-_SHOWN_ROWS:]]))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
