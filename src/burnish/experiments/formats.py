"""A table of results as plain text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burnish.algorithms.statistics import Interval
from burnish.types import Json

_LATEX = {character: f"\\{character}" for character in "_%#&${}"} | {"~": "\\textasciitilde{}", "^": "\\^{}", "\\": "/"}
_COLUMNS = 79
_DECIMALS = 3
_MOST_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the output: a line about it, and cells, the headings first. The first column is text."""

    caption: str
    lines: tuple[tuple[str, ...], ...]


def as_plain_text(blocks: Sequence[Block], notes: Sequence[str]) -> str:
    """Columns for a terminal, and the notes."""
    parts = [f"{textwrap.fill(block.caption, _COLUMNS)}\n\n{_aligned(block.lines)}" for block in blocks]
    return "\n\n".join([*parts, *(textwrap.fill(f"note: {note}", _COLUMNS) for note in notes)])


def as_markdown(blocks: Sequence[Block], notes: Sequence[str]) -> str:
    """Tables of Markdown, with the notes as a list."""
    parts = []
    for block in blocks:
        first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in block.lines)
        rule = "|---|" + "---:|" * (len(block.lines[0]) - 1)
        parts.append("\n".join([block.caption, "", first, rule, *others]))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)]).rstrip()


def as_latex(blocks: Sequence[Block], notes: Sequence[str]) -> str:
    """Environments `tabular`, which need no package, with captions and notes as comments."""
    parts = []
    for block in blocks:
        first, *others = (" & ".join(map(_escaped, line)) + r" \\" for line in block.lines)
        begin = r"\begin{tabular}{l" + "r" * (len(block.lines[0]) - 1) + "}"
        parts.append("\n".join([f"% {block.caption}", begin, first, r"\hline", *others, r"\end{tabular}"]))
    return "\n\n".join([*parts, *(f"% {note}" for note in notes)])


def as_csv(rows: Sequence[Mapping[str, Json]]) -> str:
    """A line for each group, with all digits; empty where there is no number."""
    import pandas

    return pandas.DataFrame(list(rows), dtype=object).to_csv(index=False, lineterminator="\n").rstrip("\n")


FORMATS: Mapping[str, Callable[[Sequence[Block], Sequence[str]], str]] = {
    "text": as_plain_text,
    "markdown": as_markdown,
    "latex": as_latex,
}
CSV = "csv"
"""The one format that has numbers as they are, not as they are shown."""


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


def in_words(interval: Interval, form: str) -> str:
    if interval.low is None or interval.high is None:
        return "one run only"
    return f"{interval.low:{form}} to {interval.high:{form}}"


def decimals_of(intervals: Sequence[Interval]) -> int:
    """Decimals that show two digits of the narrowest interval."""
    widths = [interval.half_width for interval in intervals if interval.half_width]
    if not widths:
        return _DECIMALS
    return min(max(1 - math.floor(math.log10(min(widths))), 0), _MOST_DECIMALS)


def short_number(number: float) -> str:
    """ "940", "12.3k" or "4.56M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"
