"""Pieces of HTML for notebooks: a curve, a small table, and text with its tokens tinted by log-probability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from burnish.observability.console import table_of

CURVES = ("eval/accuracy", "reward/mean", "eval/reward_mean", "eval/loss", "train/loss", "train/accuracy")
"""A curve shows the first of these that was measured at two steps or more."""
_WIDTH, _HEIGHT, _MARGIN = 460, 150, 34
_DARKEST = 6.0
"""A token of this many nats or more (a probability below 0.25 %) has the full tint."""
_SHOWN_ROWS = 8


def run_html(title: str, rows: Sequence[Mapping[str, float]]) -> str:
    """A run: its newest rows and the curve that matters most."""
    parts = [f"<p><b>{escape(title)}</b></p>", table_html(rows[-_SHOWN_ROWS:])]
    for name in CURVES:
        points = [(int(row["step"]), float(row[name])) for row in rows if name in row]
        if len(points) > 1:
            parts.append(curve_svg(points, name))
            break
    return "<div>" + "".join(parts) + "</div>"


def table_html(rows: Sequence[Mapping[str, float]]) -> str:
    """The columns of the live display; empty without rows."""
    if not rows:
        return "<p>no step yet</p>"
    headings, *lines = table_of(rows)
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def curve_svg(points: Sequence[tuple[int, float]], title: str) -> str:
    """A line through (step, value), with the ends of both axes."""
    steps, values = [x for x, _ in points], [y for _, y in points]
    low, high = min(values), max(values)
    span_x, span_y = max(steps[-1] - steps[0], 1), (high - low) or 1.0
    inner_x, inner_y = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN

    def place(step: int, value: float) -> str:
        x = _MARGIN + (step - steps[0]) / span_x * inner_x
        return f"{x:.1f},{_HEIGHT - _MARGIN - (value - low) / span_y * inner_y:.1f}"

    line = " ".join(place(*point) for point in points)
    label = '<text x="{}" y="{}" font-size="11" fill="currentColor"{}>{}</text>'
    end = ' text-anchor="end"'
    texts = [
        label.format(_MARGIN, 16, "", escape(title)),
        label.format(_MARGIN - 4, _HEIGHT - _MARGIN, end, f"{low:.3g}"),
        label.format(_MARGIN - 4, _MARGIN + 4, end, f"{high:.3g}"),
        label.format(_MARGIN, _HEIGHT - 14, "", f"step {steps[0]}"),
        label.format(_WIDTH - _MARGIN, _HEIGHT - 14, end, steps[-1]),
    ]
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f'<polyline points="{line}" fill="none" stroke="#2a78d6" stroke-width="2"/>{"".join(texts)}</svg>'
    )


def tinted_html(tokens: Sequence[str], logprobs: Sequence[float], sampled: Sequence[bool] | None = None) -> str:
    """The tokens as a line of text, redder the less likely they were; hovering over one shows its log-probability.

    sampled: which tokens the policy sampled (None: all of them). The others are grey, and have no log-probability.
    """
    own = '<span title="{:.3f}" style="background:rgba(214,69,42,{:.2f})">{}</span>'
    given = '<span title="not sampled" style="color:gray;border-bottom:1px dotted gray">{}</span>'
    spans = [
        own.format(value, surprise(value) * 0.6, escape(token)) if is_own else given.format(escape(token))
        for token, value, is_own in zip(tokens, logprobs, sampled or [True] * len(tokens), strict=True)
    ]
    return f'<span style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}</span>'


def surprise(logprob: float) -> float:
    """0 for a certain token, 1 from `_DARKEST` nats on or if the number is not finite."""
    return min(1.0, -min(logprob, 0.0) / _DARKEST) if math.isfinite(logprob) else 1.0
