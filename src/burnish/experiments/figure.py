"""Learning curves of groups of runs, with their intervals as bands. The one file that imports matplotlib."""

from __future__ import annotations

from pathlib import Path

from burnish.errors import BurnishError, ConfigError
from burnish.experiments.statistics import Interval, mean_interval
from burnish.experiments.table import Group, ResultsTable
from burnish.observability.atomic import disk_remedy

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can tell apart."""
DASHES = ("-", "--", "-.", ":")
_INCHES = (6.4, 4.0)
SUFFIXES = (".svg", ".png", ".pdf")


def draw(table: ResultsTable, path: Path) -> Path:
    """Write the figure and return its path. ConfigError for another suffix, or without matplotlib."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"the figure {path} has no known suffix", remedy=f"use one of {', '.join(SUFFIXES)}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "a figure needs matplotlib, which is not installed", remedy="pip install 'burnish[figures]'"
        ) from error
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    for number, group in enumerate(table.groups):
        color, dashes = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
        curve = curve_of(group, table.metric)
        steps, means = list(curve), [interval.mean for interval in curve.values()]
        axes.plot(steps, means, dashes, color=color, label=f"{group.label} ({len(group.runs)})")
        if len(group.runs) > 1:
            low = [interval.mean - (interval.half_width or 0) for interval in curve.values()]
            high = [interval.mean + (interval.half_width or 0) for interval in curve.values()]
            axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    if table.threshold is not None:
        axes.axhline(table.threshold, color="#888888", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel=table.metric)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="mean (runs), band: 95 % interval")
    try:
        with rc_context({"svg.hashsalt": "burnish", "svg.fonttype": "none"}):  # the same bytes each time
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise BurnishError(f"cannot write {path}: {error.strerror}", remedy=disk_remedy(error, path.parent)) from error
    return path


def curve_of(group: Group, metric: str) -> dict[int, Interval]:
    """The mean of the group's runs with its interval, at the steps at which all of them have measured the metric: over
    fewer, a curve would jump where a run ends."""
    series = [dict(zip(*run.metrics[metric], strict=True)) for run in group.runs]
    shared = [step for step in series[0] if all(step in other for other in series)]
    return {step: mean_interval([one[step] for one in series]) for step in shared}
