"""Tables of the commands: with boxes on a wide terminal, a line for each row elsewhere. Names are never shortened."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from burnish.observability.console import say

WIDE = 120
"""Columns of a terminal on which tables have boxes."""
_LEAST_OF_LAST = 24
"""Columns that the last cell needs beside the others; with fewer it stands below them."""

Cells = Sequence[str]


def show_table(console: Console, headings: Cells, rows: Sequence[Cells], *, title: str = "") -> None:
    """Print rows of plain text. Only the last cell of a row is wrapped, and on a terminal alone: a pipe gets whole
    lines."""
    rows = [[cell.replace("\n", "\\n") for cell in cells] for cells in rows]
    widths = [max(len(cells[index]) for cells in (headings, *rows)) for index in range(len(headings))]
    if console.is_terminal and console.width >= max(WIDE, sum(widths[:-1]) + 3 * len(widths) + _LEAST_OF_LAST):
        say(console, [title] if title else [])
        console.print(_boxed(headings, rows), end="\n\n")
        return
    most = console.width if console.is_terminal else None
    lines = [line for cells in (headings, *rows) for line in _line(cells, widths, most)]
    say(console, [*([title] if title else []), *lines, ""])


def _boxed(headings: Cells, rows: Sequence[Cells]) -> Table:
    table = Table()
    for index, heading in enumerate(headings):
        table.add_column(heading, no_wrap=index < len(headings) - 1, overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def _line(cells: Cells, widths: Sequence[int], most: int | None) -> list[str]:
    """Align the cells of a row, and fold what does not fit into `most` columns."""
    beside = "".join(f"{cell:<{width}}  " for cell, width in zip(cells[:-1], widths[:-1], strict=True))
    whole = f"{beside}{cells[-1]}".rstrip()
    if most is None or len(whole) <= most:
        return [whole]
    indent = len(beside)
    if most - indent < _LEAST_OF_LAST:
        return [beside.rstrip(), *textwrap.wrap(cells[-1], most, initial_indent="    ", subsequent_indent="    ")]
    return textwrap.wrap(cells[-1], most, initial_indent=beside, subsequent_indent=" " * indent, break_on_hyphens=False)
