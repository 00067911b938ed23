"""Charts of recorded responses: traits of those with the highest and the lowest rewards, the critic's values against
the actual returns, and the scores of a reward model.

A policy that games its reward changes the form of rewarded responses before anyone reads them: longer or shorter,
repetitive, with more markup. Each chart compares the third of a step's responses with the highest rewards to the third
with the lowest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypedDict

from burnish.board.metric_charts import evenly
from burnish.board.samples import reading_recorded
from burnish.observability.recorder import RecordedLine, each_rollout, num_sampled, recorded_files, sampled_mask

HISTOGRAM_FILE = "score_histogram.json"
"""Of a run of a reward model: counts of held-out scores between `edges`, of the `best` candidates and of the `others`,
after `step`."""
MAX_STEPS = 40
MAX_DOTS = 1200
PARTS = 10
_MARKS = re.compile(r"```|\*\*|\\boxed|^[ \t]*(?:#|[-*•] |\d+[.)] )|<\w+>", re.MULTILINE)

Point = tuple[float, float]
"""The critic's value before a token, and the return from this token on."""
StepMeans = tuple[int, Mapping[str, tuple[float, float]]]
"""A step, and each measure's means of its best-paid and its worst-paid responses."""


class Series(TypedDict):
    """A line of a chart, or a cloud of dots, by rising x."""

    label: str
    mark: Literal["line", "dashes", "dots"]
    x: list[float]
    y: list[float]


class ResponseChart(TypedDict):
    """A chart that is not one of metrics; `axis` names its x axis."""

    title: str
    help: str
    axis: str
    series: list[Series]


def response_charts(run_dir: Path, *, critic: bool) -> list[ResponseChart]:
    """Make the charts that a run has recordings for; `critic`: it has values. DataError if a file of rollouts is
    damaged."""
    rollouts = run_dir / "rollouts"
    values = value_charts(rollouts) if critic else []  # without a critic, files would be read in vain
    return [*score_charts(rollouts), *values, *score_histogram(run_dir)]


def score_histogram(run_dir: Path) -> list[ResponseChart]:
    """Make the chart of a reward model's held-out scores; empty for other runs."""
    file = run_dir / HISTOGRAM_FILE
    if not file.exists():
        return []
    counts = json.loads(file.read_text(encoding="utf-8"))
    middles = [float(f"{(low + high) / 2:.6g}") for low, high in pairwise(counts["edges"])]
    series = [Series(label=name, mark="line", x=middles, y=counts[name]) for name in ("best", "others")]
    remark = f"responses by score; evaluation after step {counts['step']}"
    return [{"title": "Held-out scores", "help": remark, "axis": "score", "series": series}]


def repetition(text: str) -> float:
    """Share of three-word sequences that occurred before in the text; 0 for texts of fewer than three words."""
    words = text.split()
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(triples)) / len(triples) if triples else 0.0


def has_format(text: str) -> bool:
    """Return whether the text has markup: headings, lists, bold, code, boxes or tags."""
    return _MARKS.search(text) is not None


MEASURES: Mapping[str, tuple[str, Callable[[RecordedLine], float]]] = {
    "Length by score": ("mean tokens", lambda line: float(num_sampled(line))),
    "Repetition by score": (
        "mean share of three-word sequences that came before",
        lambda line: repetition(line["response"]),
    ),
    "Format by score": (
        "share of responses with headings, lists, bold, code, boxes or tags",
        lambda line: float(has_format(line["response"])),
    ),
}


def score_charts(folder: Path) -> list[ResponseChart]:
    """Make a chart for each measure over at most `MAX_STEPS` training steps; empty if rewards never differ."""
    means: list[StepMeans] = []
    for step, path in evenly([*recorded_files(folder).items()], MAX_STEPS):
        with reading_recorded(path):
            scored = [line for line in each_rollout(path) if not line["greedy"] and line["reward"] is not None]
            # A reward that is not finite was recorded as text.
            lines = [line for line in scored if not isinstance(line["reward"], str)]
        best, worst = extreme_thirds([line for line in lines if line.get("ends_in") is None])
        if best:
            measured = {t: (_mean_of(measure, best), _mean_of(measure, worst)) for t, (_, measure) in MEASURES.items()}
            means.append((step, measured))
    return [_score_chart(title, about, means) for title, (about, _) in MEASURES.items()] if means else []


def _mean_of(measure: Callable[[RecordedLine], float], lines: Sequence[RecordedLine]) -> float:
    return float(f"{sum(map(measure, lines)) / len(lines):.6g}")


def extreme_thirds(lines: Sequence[RecordedLine]) -> tuple[list[RecordedLine], list[RecordedLine]]:
    """Split off the thirds with the highest and the lowest rewards; empty if a reward would be in both."""
    ordered = sorted(lines, key=lambda line: float(line["reward"]))
    count = len(ordered) // 3
    worst, best = ordered[:count], ordered[len(ordered) - count :]
    if not count or worst[-1]["reward"] >= best[0]["reward"]:
        return [], []
    return best, worst


def _score_chart(title: str, about: str, means: Sequence[StepMeans]) -> ResponseChart:
    def series(label: str, which: int) -> Series:
        values = [measured[title][which] for _, measured in means]
        return {"label": label, "mark": "line", "x": [step for step, _ in means], "y": values}

    thirds = [series("best-paid third", 0), series("worst-paid third", 1)]
    return {"title": title, "help": about, "axis": "step", "series": thirds}


def value_charts(folder: Path) -> list[ResponseChart]:
    """The chart of the newest training step that recorded values and returns; empty if no step did."""
    for step, path in reversed(recorded_files(folder).items()):
        lines = [line for line in each_rollout(path) if line.get("kept") and "token_returns" in line]
        firsts = [point for line in lines for point in _points(line)[:1]]
        later = [point for line in lines for point in _points(line)[1:]]
        if firsts:
            return [_value_chart(step, firsts, later)]
    return []


def _points(line: RecordedLine) -> list[Point]:
    """The (value, return) pairs of the tokens that the policy sampled. Numbers that are not finite are recorded as
    text, and left out here."""
    pairs = zip(line["token_values"], line["token_returns"], sampled_mask(line), strict=True)
    return [(v, r) for v, r, sampled in pairs if sampled and not isinstance(v, str) and not isinstance(r, str)]


def _value_chart(step: int, firsts: Sequence[Point], later: Sequence[Point]) -> ResponseChart:
    drawn = [
        _value_series("later tokens", "dots", evenly(later, MAX_DOTS)),
        _value_series("first token", "dots", evenly(firsts, MAX_DOTS // 2)),
        _value_series("mean return", "line", mean_by_value([*firsts, *later])),
    ]
    xs, ys = ([number for one in drawn for number in one[axis]] for axis in ("x", "y"))
    low, high = max(min(xs), min(ys)), min(max(xs), max(ys))
    right = [low, high] if low < high else []
    drawn.append({"label": "where the value was right", "mark": "dashes", "x": right, "y": right})
    remark = f"return from a token on, by the critic's value before it; tokens of step {step}"
    return {"title": "Return by value", "help": remark, "axis": "value", "series": [one for one in drawn if one["x"]]}


def mean_by_value(points: Sequence[Point]) -> list[Point]:
    """Mean value and mean return of each tenth of the points, sorted by value.

    Empty if all values are equal, because then the tenths would be arbitrary.
    """
    ordered = sorted(points, key=lambda point: point[0])
    if not ordered or ordered[0][0] == ordered[-1][0]:
        return []
    count = min(PARTS, len(ordered))
    parts = [ordered[start:stop] for start, stop in pairwise(evenly(range(len(ordered) + 1), count + 1))]
    return [(sum(v for v, _ in part) / len(part), sum(r for _, r in part) / len(part)) for part in parts]


def _value_series(label: str, mark: Literal["line", "dots"], points: Sequence[Point]) -> Series:
    x, y = ([float(f"{point[axis]:.5g}") for point in sorted(points)] for axis in (0, 1))
    return {"label": label, "mark": mark, "x": x, "y": y}
