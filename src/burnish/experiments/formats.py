"""A table of results as plain text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burnish.experiments.statistics import Interval
from burnish.experiments.table import Difference, Group, Reached, ResultsTable, short_name

_LATEX = {character: f"\\{character}" for character in "_%#&${}"} | {"~": "\\textasciitilde{}", "\\": "/"}
_COLUMNS = 79
_DECIMALS = 3
_MOST_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the output: a line about it, and cells, the headings first. The first column is text."""

    caption: str
    lines: tuple[tuple[str, ...], ...]


def as_plain_text(table: ResultsTable) -> str:
    """Columns for a terminal, and the notes."""
    parts = [f"{textwrap.fill(block.caption, _COLUMNS)}\n\n{_aligned(block.lines)}" for block in blocks(table)]
    return "\n\n".join([*parts, *(textwrap.fill(f"note: {note}", _COLUMNS) for note in table.notes)])


def as_markdown(table: ResultsTable) -> str:
    """Tables of Markdown, with the notes as a list."""
    parts = []
    for block in blocks(table):
        first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in block.lines)
        rule = "|---|" + "---:|" * (len(block.lines[0]) - 1)
        parts.append("\n".join([block.caption, "", first, rule, *others]))
    notes = "\n".join(f"- {note}" for note in table.notes)
    return "\n\n".join([*parts, *([notes] if notes else [])])


def as_latex(table: ResultsTable) -> str:
    """Environments `tabular`, which need no package, with captions and notes as comments."""
    parts = []
    for block in blocks(table):
        first, *others = (" & ".join(map(_escaped, line)) + r" \\" for line in block.lines)
        begin = r"\begin{tabular}{l" + "r" * (len(block.lines[0]) - 1) + "}"
        parts.append("\n".join([f"% {block.caption}", begin, first, r"\hline", *others, r"\end{tabular}"]))
    return "\n\n".join([*parts, *(f"% {note}" for note in table.notes)])


def as_csv(table: ResultsTable) -> str:
    """A line for each group, with all digits; empty where there is no number."""
    written, rows = io.StringIO(), table.rows
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue().rstrip("\n")


FORMATS: Mapping[str, Callable[[ResultsTable], str]] = {
    "text": as_plain_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def blocks(table: ResultsTable) -> list[Block]:
    """The groups, and below them their differences from the first one, if there are several."""
    settings = table.groups[0].settings
    heading = short_name(next(iter(settings)), settings) if len(settings) == 1 else "runs that differ"
    headings = [heading, "runs", "mean", "95 % interval"]
    if table.threshold is not None:
        sign = "<=" if table.lower_is_better else ">="
        headings += [f"steps to {sign} {table.threshold:g}", "tokens"]
    decimals = _decimals([group.mean for group in table.groups])
    lines = [tuple(headings), *(_group_line(group, decimals) for group in table.groups)]
    count = sum(len(group.runs) for group in table.groups)
    found = [Block(f"{table.metric} of {count} run{'s' * (count > 1)}", tuple(lines))]
    if table.differences:
        caption = (
            f"{table.metric} less that of {table.groups[0].label}, run by run. Runs that agree in all else share "
            "prompts and noise; unpaired, the interval would be so many times as wide."
        )
        headings = [heading, "pairs", "difference", "95 % interval", "unpaired"]
        decimals = _decimals([one.paired or one.unpaired for one in table.differences])
        lines = [tuple(headings), *(_difference_line(one, decimals) for one in table.differences)]
        found.append(Block(caption, tuple(lines)))
    return found


def _group_line(group: Group, decimals: int) -> tuple[str, ...]:
    mean = group.mean
    cells = [group.label, str(mean.count), f"{mean.mean:.{decimals}f}", _range(mean, f".{decimals}f")]
    return (*cells, *(_reached_cells(group.reached) if group.reached is not None else ()))


def _reached_cells(reached: Reached) -> tuple[str, str]:
    if reached.steps is None:
        return f"{reached.runs} of {reached.of} reach it", ""
    tokens = "" if reached.tokens is None else _short(reached.tokens.mean)
    spread = reached.steps.half_width
    return f"{reached.steps.mean:.0f}" + ("" if spread is None else f" ± {spread:.0f}"), tokens


def _difference_line(one: Difference, decimals: int) -> tuple[str, ...]:
    shown = one.paired or one.unpaired
    pairs = "none" if one.paired is None else str(one.paired.count)
    ratio = "" if one.narrowing is None else f"{one.narrowing:.1f} x"
    return one.group.label, pairs, f"{shown.mean:+.{decimals}f}", _range(shown, f"+.{decimals}f"), ratio


def _range(interval: Interval, form: str) -> str:
    if interval.low is None or interval.high is None:
        return "one run only"
    return f"{interval.low:{form}} to {interval.high:{form}}"


def _decimals(intervals: Sequence[Interval]) -> int:
    """Decimals that show two digits of the narrowest interval."""
    widths = [interval.half_width for interval in intervals if interval.half_width]
    if not widths:
        return _DECIMALS
    return min(max(1 - math.floor(math.log10(min(widths))), 0), _MOST_DECIMALS)


def _short(number: float) -> str:
    """ "940", "12.3k" or "4.56M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def _escaped(cell: str) -> str:
    text = "".join(_LATEX.get(character, character) for character in cell)
    return text.replace("±", r"$\pm$").replace(">=", r"$\geq$").replace("<=", r"$\leq$")
