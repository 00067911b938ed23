"""The charts of the board: which lines each has, and the points of a line."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypedDict

from burnish.board.metric_charts import named_charts, peaks
from burnish.board.tables import Column, MetricTable
from burnish.observability.metric_names import explain

Axis = Literal["step", "tokens", "time"]
MOST_POINTS = 1_500
"""Of a line; with more rows it keeps its extremes (`peaks`)."""
_PHASE_PARTS = {"step", "answers", "prefill", "decode", "engine_start", "engine_sleep"}
"""The whole step, and parts of other phases."""


class Line(TypedDict):
    """A line of a chart. right: it has the scale on the right; dashed: nothing learns from it."""

    label: str
    metric: str
    right: bool
    dashed: bool


class BoardChart(TypedDict):
    """A chart; `main` for those on the first page. stack: the lines are layers."""

    title: str
    section: str
    help: str
    main: bool
    stack: bool
    lines: list[Line]


class Flat(TypedDict):
    """A metric that has had one value all along."""

    metric: str
    value: float


class Charts(TypedDict):
    """Charts of some runs, and the metrics that are not worth one."""

    charts: list[BoardChart]
    flat: list[Flat]


class Points(TypedDict):
    """Points of a line: the steps, their places on the x axis, and the values. total: sum of all values from step 1 on,
    also of those without a point; count: number of these steps."""

    steps: list[int]
    x: list[float]
    y: list[float]
    total: float
    count: int


def charts_of(tables: Sequence[MetricTable]) -> Charts:
    """Return the charts that these runs have data for: six of what matters first, then the rest.

    A metric is in one chart only. One that is flat in all runs is in none, and of metrics with the same values
    throughout only the first is drawn, under both names.
    """
    names = sorted({name for table in tables for name in table.columns})
    flat = {name for name in names if _is_flat(name, tables)}
    twins = _twins([name for name in names if name not in flat], tables)
    drawn: set[str] = set()
    charts: list[BoardChart] = []
    for chart in (*_first(names), *_rest(names)):
        lines = list(_distinct(chart["lines"], flat, twins, drawn))
        if lines:
            charts.append({**chart, "lines": lines})
    values = {name: next(table.columns[name].values[0] for table in tables if name in table.columns) for name in flat}
    return {"charts": charts, "flat": [{"metric": name, "value": values[name]} for name in sorted(flat)]}


def points(
    table: MetricTable,
    name: str,
    axis: Axis = "step",
    *,
    after: int = -1,
    first: float = float("-inf"),
    last: float = float("inf"),
    most: int = MOST_POINTS,
) -> Points:
    """Return the points of a metric after a step, and from `first` to `last` on the x axis; at most `most`."""
    column = table.columns.get(name, Column())
    by_axis: dict[Axis, Sequence[float]] = {"step": table.steps, "tokens": table.tokens, "time": table.seconds}
    places = by_axis[axis]
    low = max(bisect_left(places, first), bisect_right(table.steps, after))
    end, trained = bisect_right(places, last), max(low, bisect_left(table.steps, 1))
    start, stop = bisect_left(column.rows, low), bisect_left(column.rows, end)
    picked = [start + i for i in peaks(column.values[start:stop], most)]
    rows = [column.rows[i] for i in picked]
    return {
        "steps": [table.steps[row] for row in rows],
        "x": [_short(places[row]) for row in rows],
        "y": [_short(column.values[i]) for i in picked],
        "total": _short(sum(column.values[bisect_left(column.rows, trained) : stop])),
        "count": max(0, end - trained),
    }


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _is_flat(name: str, tables: Sequence[MetricTable]) -> bool:
    columns = [table.columns[name] for table in tables if name in table.columns]
    return len({column.values[0] for column in columns}) == 1 and all(
        len(column.values) > 1 and column.is_flat() for column in columns
    )


def _twins(names: Iterable[str], tables: Sequence[MetricTable]) -> Mapping[str, str]:
    """The first metric with the same values in all runs, for each metric. The shortest name comes first: `reward/mean`
    before `reward/part/exact`."""
    first: dict[tuple[str, ...], str] = {}
    return {
        name: first.setdefault(tuple(t.columns[name].digest() if name in t.columns else "" for t in tables), name)
        for name in sorted(names, key=lambda name: (name.count("/"), len(name), name))
    }


def _distinct(lines: Sequence[Line], flat: set[str], twins: Mapping[str, str], drawn: set[str]) -> Iterator[Line]:
    """Yield the lines that are not drawn yet. Twins within a chart become one line with both labels."""
    labels: dict[str, list[str]] = {}
    for line in lines:
        if line["metric"] not in flat:
            labels.setdefault(twins[line["metric"]], []).append(line["label"])
    for line in lines:
        twin = twins.get(line["metric"], line["metric"])
        if line["metric"] in flat or twin in drawn:
            continue
        drawn.add(twin)
        yield {**line, "label": " = ".join(dict.fromkeys(labels[twin]))}


def _line(label: str, metric: str, *, right: bool = False, dashed: bool = False) -> Line:
    return {"label": label, "metric": metric, "right": right, "dashed": dashed}


def _chart(
    title: str, section: str, lines: Iterable[Line], remark: str = "", *, main: bool = False, stack: bool = False
) -> BoardChart:
    return {"title": title, "section": section, "help": remark, "main": main, "stack": stack, "lines": list(lines)}


def _first(names: Sequence[str]) -> Iterator[BoardChart]:
    """Yield what matters first, of runs of all kinds."""

    def known(*lines: Line) -> list[Line]:
        return [line for line in lines if line["metric"] in names]

    def family(prefix: str, before: str = "", *, dashed: bool = False) -> list[Line]:
        found = [name for name in names if name.startswith(prefix)]
        return [_line(before + name.removeprefix(prefix), name, dashed=dashed) for name in found]

    rewards = known(_line("mean", "reward/mean")) + family("reward/part/")
    rewards += family("reward/audit/", "audit: ", dashed=True)
    losses = known(_line("training", "train/loss"), _line("held out", "eval/loss"))
    accuracy = known(
        _line("accuracy", "eval/accuracy"),
        _line("low", "eval/accuracy_low", dashed=True),
        _line("high", "eval/accuracy_high", dashed=True),
        _line("token accuracy", "eval/token_accuracy"),
        _line("training", "train/accuracy"),
    )
    length = known(
        _line("mean", "rollout/response_tokens_mean"),
        _line("held out", "eval/response_tokens_mean"),
        _line("cut", "rollout/truncated_fraction", right=True),
        _line("cut, held out", "eval/truncated_fraction", right=True, dashed=True),
    )
    entropy = known(_line("entropy", "policy/entropy"))
    distance = known(
        _line("KL to the reference", "kl/reference"),
        _line("KL of the updates", "policy/approx_kl"),
        _line("mismatch", "rollout/logprob_diff_mean", right=True),
    )
    phases = [
        _line(phase, name)
        for name in names
        if name.startswith("time/") and name.count("/") == 1
        if (phase := name.removeprefix("time/").removesuffix("_seconds")) not in _PHASE_PARTS
    ]
    held_out = "" if "eval/accuracy" in names else "share of tokens that the model finds most likely"
    yield _chart("Loss", "First", losses, main=True)
    yield _chart("Reward by part", "First", rewards, "dashed: audits, from which nothing learns", main=True)
    yield _chart("Held-out accuracy", "First", accuracy, held_out, main=True)
    yield _chart("Length and cut", "First", length, "tokens; share cut at the limit (right)", main=True)
    yield _chart("Entropy", "First", entropy, "nats per token", main=True)
    yield _chart("KL and mismatch", "First", distance, "nats; sampler against trainer (right)", main=True)
    yield _chart("Seconds by phase", "First", phases, "per step", main=True, stack=True)


def _rest(names: Sequence[str]) -> Iterator[BoardChart]:
    for chart in named_charts(names):
        yield _chart(chart.title, chart.section, [_line(*one) for one in chart.metrics], chart.help)
    for name in names:
        yield _chart(name, "Further", [_line(name, name)], explain(name))
