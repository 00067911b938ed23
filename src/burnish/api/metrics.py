"""The metrics of a run as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from burnish.observability.console import columns_of

if TYPE_CHECKING:
    from io import StringIO

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
    return pandas.DataFrame(list(rows), columns=_columns(rows)).set_index("step")


def shown(rows: Sequence[Mapping[str, float]]) -> str:
    """The newest rows with the columns of the live display, as plain text."""
    console = Console(file=_text_file(), width=200, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(picture(rows))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def picture(rows: Sequence[Mapping[str, float]]) -> Table:
    """The newest rows as a table for a terminal."""
    known = {name: value for row in rows for name, value in row.items()}
    columns = columns_of(known)
    table = Table(box=None, pad_edge=False)
    for heading in ("step", *(heading for heading, _, _ in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[-_SHOWN_ROWS:]:
        cells = (format(row[name], spec) if name in row else "" for _, name, spec in columns)
        table.add_row(str(row["step"]), *cells)
    return table


def _columns(rows: Sequence[Mapping[str, float]]) -> list[str]:
    return ["step", *dict.fromkeys(name for row in rows for name in row if name != "step")]


def _text_file() -> StringIO:
    from io import StringIO

    return StringIO()
