"""The metrics of a run as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console

from burnish.observability.console import rich_table, table_of

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN_ROWS = 10


def metrics_table(rows: Sequence[Mapping[str, float]]) -> DataFrame:
    """A pandas table with the step as its index."""
    import pandas

    names = ["step", *dict.fromkeys(name for row in rows for name in row if name != "step")]
    return pandas.DataFrame(list(rows), columns=names).set_index("step")


def shown(rows: Sequence[Mapping[str, float]]) -> str:
    """The newest rows with the columns of the live display, as plain text."""
    lines = table_of(rows)
    console = Console(file=StringIO(), width=200, force_terminal=False, force_jupyter=False)
    with console.capture() as capture:
        console.print(rich_table([lines[0], *lines[1:][-_SHOWN_ROWS:]]))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())
