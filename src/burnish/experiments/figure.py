"""Learning curves of groups of runs, with their intervals as bands. The one file that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.algorithms.statistics import Interval
from burnish.errors import ConfigError, needing
from burnish.observability.atomic import writing

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can tell apart."""
DASHES = ("-", "--", "-.", ":")
_INCHES = (6.4, 4.0)
SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the figure: its label, and the mean with its interval by step."""

    label: str
    points: Mapping[int, Interval]


def draw(curves: Sequence[Curve], path: Path, *, metric: str, threshold: float | None) -> Path:
    """Write the figure and return its path. ConfigError for another suffix, or without matplotlib."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"the figure {path} has no known suffix", remedy=f"use one of {', '.join(SUFFIXES)}")
    with needing("'burnish[figures]'", ConfigError, "a figure needs matplotlib, which is not installed"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        color, dashes = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
        steps, intervals = list(curve.points), list(curve.points.values())
        axes.plot(steps, [one.mean for one in intervals], dashes, color=color, label=curve.label)
        low, high = ([one.mean + sign * (one.half_width or 0) for one in intervals] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    if threshold is not None:
        axes.axhline(threshold, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel=metric)
    axes.locator_params(axis="x", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="mean (runs), band: 95 % interval")
    same_bytes = rc_context({"svg.hashsalt": "burnish", "svg.fonttype": "none"})
    with writing(path), same_bytes:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
