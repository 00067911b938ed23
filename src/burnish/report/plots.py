"""Curves for the terminal, drawn with braille characters of two by four dots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of the dot at (row, column) in a braille character."""


def plot_curve(
    steps: Sequence[float], values: Sequence[float], *, title: str = "", width: int = 60, height: int = 12
) -> str:
    """A curve as text: `height` lines of `width` characters, with the range of values on the left and steps below."""
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps but {len(values)} values")
    if not values:
        return f"{title}: nothing measured yet" if title else "nothing measured yet"
    low, high = _range(values)
    canvas = _draw(_scaled(steps, min(steps), max(steps), width * 2), _scaled(values, low, high, height * 4), height)
    lines = ["".join(chr(0x2800 + canvas.get((row, column), 0)) for column in range(width)) for row in range(height)]
    return "\n".join([*([title] if title else []), *_framed(lines, low, high, steps, width)])


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    return low, high


def _scaled(values: Sequence[float], low: float, high: float, size: int) -> list[int]:
    span = high - low or 1.0
    return [round((value - low) / span * (size - 1)) for value in values]


def _draw(xs: Sequence[int], ys: Sequence[int], height: int) -> dict[tuple[int, int], int]:
    """(row from the top, column) -> the dots of that character. `ys` count upwards."""
    canvas: dict[tuple[int, int], int] = {}
    for x, y in _points(xs, ys):
        (row, dot_row), (column, dot_column) = divmod(4 * height - 1 - y, 4), divmod(x, 2)
        canvas[row, column] = canvas.get((row, column), 0) | _DOTS[dot_row][dot_column]
    return canvas


def _points(xs: Sequence[int], ys: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The dots of the line through the data points."""
    yield xs[0], ys[0]
    for (x0, x1), (y0, y1) in zip(pairwise(xs), pairwise(ys), strict=True):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(1, length + 1):
            yield round(x0 + (x1 - x0) * i / length), round(y0 + (y1 - y0) * i / length)


def _framed(lines: Sequence[str], low: float, high: float, steps: Sequence[float], width: int) -> Iterator[str]:
    labels = {0: f"{high:.4g}", len(lines) // 2: f"{(low + high) / 2:.4g}", len(lines) - 1: f"{low:.4g}"}
    margin = max(len(label) for label in labels.values())
    for row, line in enumerate(lines):
        tick = "┤" if row in labels else "│"
        yield f"{labels.get(row, ''):>{margin}} {tick}{line}"
    yield " " * margin + " └" + "─" * width
    first, last = f"{min(steps):g}", f"step {max(steps):g}"
    yield " " * (margin + 2) + first + last.rjust(width - len(first))
