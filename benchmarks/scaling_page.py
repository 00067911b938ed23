"""What `scaling.py` found, as a page and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from scaling_axes import PHASES, Axis, Finding

matplotlib.use("Agg")
import matplotlib.pyplot as plt

EXPLANATION = """\
Time is fitted with `fixed + factor * size ** exponent`. Memory that should be constant is fitted with a plain power;
other memory, a peak, with the first form or `max(fixed, factor * size ** exponent)`, whichever fits better. The
interval is two standard errors; `fixed` is the fixed part's share of the smallest point. `arithmetic` is the exponent
of the unavoidable multiply-adds, fitted the same way. A bound is broken if the whole interval is above it, unclear if
only the exponent is. An interval from a small to a large exponent means that little grows at all. Bytes are a phase's
peak above the memory in use between steps. `python benchmarks/scaling.py --help` says how each quantity should
grow."""


def to_markdown(
    report: Mapping[str, Any], axes: Sequence[Axis], findings: Sequence[Finding], clock: str, picture: str
) -> str:
    about = report["about"]
    broken = [finding for finding in findings if finding.verdict == "broken"]
    lines = [
        "# How a step grows",
        "",
        f"Written by `{about['command']}` on {about['date']}: {about['processor']}, {about['threads']} thread(s),",
        f"load average {about['load_before']:.1f} before and {about['load_after']:.1f} after; {clock} seconds, lowest",
        f"of {about['rounds']} x {about['steps']} steps.",
        *([about["note"]] if about["note"] else []),
        "",
        f"**{len(broken)} of {len(findings)} bounds broken.**",
        *(f"- {finding}" for finding in broken),
        "",
        *textwrap.wrap(EXPLANATION, 119),
        "",
        f"![Seconds and memory of each phase along each axis]({picture})",
    ]
    for axis in axes:
        measured = report["axes"][axis.name]
        own = [finding for finding in findings if finding.axis == axis.name]
        lines += ["", f"## {axis.name.capitalize()}", "", *_exponents(axis, measured, own, clock)]
        lines += ["", *_points(axis, measured, clock)]
    return "\n".join(lines) + "\n"


def _exponents(axis: Axis, measured: Sequence[Mapping[str, Any]], own: Sequence[Finding], clock: str) -> list[str]:
    lines = [
        "| | phase | exponent | interval | fixed | arithmetic | bound | |",
        "|---|---|---:|---|---:|---:|---:|---|",
    ]
    for finding in own:
        growth = finding.growth
        smallest = axis.size(measured[0])
        cells = [finding.quantity, finding.phase, f"{growth.exponent:.2f}", f"{growth.low:.2f} to {growth.high:.2f}"]
        cells += [f"{growth.fixed / growth.at(smallest):.0%}"]
        cells += ["" if finding.arithmetic is None else f"{finding.arithmetic:.2f}", f"{finding.bound:.2f}"]
        cells += [f"**{finding.verdict}**" if finding.verdict == "broken" else finding.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _points(axis: Axis, measured: Sequence[Mapping[str, Any]], clock: str) -> list[str]:
    head = [axis.label, *(f"{phase} s" for phase in PHASES), *(f"{phase} MB" for phase in PHASES)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for point in measured:
        cells = [f"{axis.size(point):,}"]
        cells += [f"{point['seconds'][clock][phase]:.3f}" for phase in PHASES]
        cells += [f"{point['bytes'][phase] / 1e6:.1f}" for phase in PHASES]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(
    report: Mapping[str, Any], axes: Sequence[Axis], findings: Sequence[Finding], clock: str, picture: Path
) -> None:
    """Above seconds, below memory; a column for each axis, points as measured and lines as fitted."""
    figure, grid = plt.subplots(2, len(axes), figsize=(3.1 * len(axes), 6.4), squeeze=False, layout="constrained")
    for column, axis in enumerate(axes):
        measured = report["axes"][axis.name]
        sizes = [axis.size(point) for point in measured]
        for row, quantity in enumerate(("seconds", "bytes")):
            panel = grid[row][column]
            for number, phase in enumerate(PHASES):
                by_phase = [point["seconds"][clock] if quantity == "seconds" else point["bytes"] for point in measured]
                unit = 1.0 if quantity == "seconds" else 1e6
                (found,) = (f for f in findings if (f.axis, f.quantity, f.phase) == (axis.name, quantity, phase))
                along = np.geomspace(sizes[0], sizes[-1], 60)
                colour = "C3" if found.verdict == "broken" else f"C{(0, 1, 2, 7)[number]}"
                panel.plot(along, [found.growth.at(size) / unit for size in along], color=colour, linewidth=1)
                label = f"{phase} {found.growth.exponent:.2f}"
                values = [amounts[phase] / unit for amounts in by_phase]
                panel.plot(sizes, values, "osDx"[number], color=colour, markersize=4, label=label)
            panel.set_xscale("log")
            panel.set_yscale("log")
            ticks = [f"{size / 1e6:.1f}M" if size >= 1e6 else f"{size:,}" for size in sizes]
            panel.set_xticks(sizes, ticks, fontsize=7)
            panel.minorticks_off()
            panel.legend(fontsize=7, frameon=False)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25)
        grid[0][column].set_title(axis.name, fontsize=10)
        grid[1][column].set_xlabel(axis.label, fontsize=9)
    grid[0][0].set_ylabel(f"{clock} seconds")
    grid[1][0].set_ylabel("MB above the resident")
    figure.savefig(picture, dpi=110)
    plt.close(figure)
