"""What the best-paid and the worst-paid responses of a run look like, from the recorded rollouts.

A policy that games its reward changes the form of what is paid before anyone reads it: longer or shorter responses,
repetition, more marks of format. Each chart compares the third of a step's responses with the highest rewards to the
third with the lowest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from burnish.observability.recorder import RecordedLine, each_rollout, num_sampled, recorded_files, step_of
from burnish.report.charts import ChartData, Series, evenly
from burnish.report.samples import reading_recorded

MAX_STEPS = 40
_MARKS = re.compile(r"```|\*\*|\\boxed|^[ \t]*(?:#|[-*•] |\d+[.)] )|<\w+>", re.MULTILINE)


def repetition(text: str) -> float:
    """Share of the three-word sequences that came before in the text; 0 for texts of fewer words."""
    words = text.split()
    triples = list(zip(words, words[1:], words[2:], strict=False))
    return 1 - len(set(triples)) / len(triples) if triples else 0.0


def has_format(text: str) -> bool:
    """Whether the text has marks of format: headings, lists, bold, code, boxes or tags."""
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


def score_charts(folder: Path) -> list[ChartData]:
    """A chart for each measure over at most `MAX_STEPS` training steps; empty where rewards never differ."""
    files = [path for path in recorded_files(folder) if path.name.startswith("step-")]
    means: list[tuple[int, Mapping[str, tuple[float, float]]]] = []
    for path in (files[index] for index in evenly(len(files), MAX_STEPS)):
        with reading_recorded(path):
            scored = [line for line in each_rollout(path) if not line["greedy"] and line["reward"] is not None]
            lines = [line for line in scored if not isinstance(line["reward"], str)]  # text is of a number not finite
        best, worst = extreme_thirds([line for line in lines if line.get("ends_in") is None])
        if best:
            measured = {t: (_mean(measure, best), _mean(measure, worst)) for t, (_, measure) in MEASURES.items()}
            means.append((step_of(path), measured))
    return [_chart(title, about, means) for title, (about, _) in MEASURES.items()] if means else []


def _mean(measure: Callable[[RecordedLine], float], lines: Sequence[RecordedLine]) -> float:
    return float(f"{sum(map(measure, lines)) / len(lines):.6g}")


def extreme_thirds(lines: Sequence[RecordedLine]) -> tuple[list[RecordedLine], list[RecordedLine]]:
    """The third with the highest rewards and the one with the lowest; empty if a reward would be in both."""
    ordered = sorted(lines, key=lambda line: float(line["reward"]))
    count = len(ordered) // 3
    worst, best = ordered[:count], ordered[len(ordered) - count :]
    if not count or worst[-1]["reward"] >= best[0]["reward"]:
        return [], []
    return best, worst


def _chart(title: str, about: str, means: Sequence[tuple[int, Mapping[str, tuple[float, float]]]]) -> ChartData:
    steps = [step for step, _ in means]

    def series(label: str, which: int) -> Series:
        return {"label": label, "x": list(steps), "y": [measured[title][which] for _, measured in means]}

    return {
        "section": "Responses",
        "title": title,
        "help": about,
        "kind": "line",
        "axis": "step",
        "series": [series("best-paid third", 0), series("worst-paid third", 1)],
    }
