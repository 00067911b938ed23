"""The report's plot of the critic's values against the actual returns, from the recorded rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from burnish.observability.recorder import RecordedLine, each_rollout, recorded_files, sampled_mask, step_of
from burnish.report.charts import ChartData, Series, evenly

MAX_DOTS = 1200
PARTS = 10

Point = tuple[float, float]
"""The critic's value before a token, and the return from that token on."""


def value_charts(folder: Path) -> list[ChartData]:
    """The chart of the newest training step that recorded values and returns; empty if no step did."""
    steps = [path for path in recorded_files(folder) if path.name.startswith("step-")]
    for path in reversed(steps):
        lines = [line for line in each_rollout(path) if line.get("kept") and "token_returns" in line]
        firsts = [point for line in lines for point in _points(line)[:1]]
        later = [point for line in lines for point in _points(line)[1:]]
        if firsts:
            return [_chart(step_of(path), firsts, later)]
    return []


def _points(line: RecordedLine) -> list[Point]:
    """The (value, return) pairs of the tokens that the policy sampled. Numbers that are not finite are recorded as
    text, and left out here."""
    pairs = zip(line["token_values"], line["token_returns"], sampled_mask(line), strict=True)
    return [(v, r) for v, r, sampled in pairs if sampled and not isinstance(v, str) and not isinstance(r, str)]


def _chart(step: int, firsts: Sequence[Point], later: Sequence[Point]) -> ChartData:
    series = [
        _series("later tokens", "dots", _thin(later, MAX_DOTS)),
        _series("first token", "dots", _thin(firsts, MAX_DOTS // 2)),
        _series("mean return", "line", mean_by_value([*firsts, *later])),
    ]
    return {
        "section": "Critic",
        "title": "Return by value",
        "help": f"tokens of step {step}; on the dashed line, the value was right",
        "kind": "scatter",
        "axis": "value",
        "series": [one for one in series if one["x"]],
    }


def mean_by_value(points: Sequence[Point]) -> list[Point]:
    """Mean value and mean return of each tenth of the points, sorted by value.

    Empty if all values are equal, because then the tenths would be arbitrary.
    """
    ordered = sorted(points, key=lambda point: point[0])
    if not ordered or ordered[0][0] == ordered[-1][0]:
        return []
    count = min(PARTS, len(ordered))
    cuts = [round(i * len(ordered) / count) for i in range(count + 1)]
    parts = [ordered[cuts[i] : cuts[i + 1]] for i in range(count)]
    return [(sum(v for v, _ in part) / len(part), sum(r for _, r in part) / len(part)) for part in parts]


def _thin(points: Sequence[Point], limit: int) -> list[Point]:
    return [points[i] for i in evenly(len(points), limit)]


def _series(label: str, mark: str, points: Sequence[Point]) -> Series:
    x, y = ([float(f"{point[i]:.5g}") for point in points] for i in (0, 1))
    return {"label": label, "mark": mark, "x": x, "y": y}
