"""The charts of the report, and their data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NotRequired, TypedDict, TypeVar

from burnish.observability.console import duration
from burnish.observability.history import columns
from burnish.observability.metric_names import explain

T = TypeVar("T")
Column = tuple[list[int], list[float]]


class Series(TypedDict):
    """One line (or cloud of dots) of a chart. `run` and `metric`: its place in a chart of several runs."""

    label: str
    x: list[int] | list[float]
    y: list[float]
    mark: NotRequired[str]
    run: NotRequired[int]
    metric: NotRequired[int]


class ChartData(TypedDict):
    """A chart as the page draws it; `axis` names its x axis where that is not the step."""

    section: str
    title: str
    help: str
    kind: str
    series: list[Series]
    axis: NotRequired[str]


_ANSWERS_SECONDS = "time/answers_seconds"
_SAMPLING = (("prefill", "time/prefill_seconds"), ("decode", "time/decode_seconds"))
_ENGINE = (("start", "time/engine_start_seconds"), ("sleep and wake", "time/engine_sleep_seconds"))
_AHEAD = (("sync", "time/sync_seconds"), ("generate", "time/generate_seconds"), ("reward", "time/reward_seconds"))
_WAIT = "time/wait_seconds"
MAX_POINTS = 800
"""Most points of a line. With more steps, a line keeps its extremes (`peaks`), and a stack means (`_means`)."""


class Histogram(TypedDict):
    """Held-out scores of a reward model: counts of the best candidates and of the others between `edges`."""

    step: int
    edges: list[float]
    best: list[float]
    others: list[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or several metrics. Metrics that the run does not have are left out."""

    section: str
    title: str
    metrics: tuple[tuple[str, str], ...]
    """(label, metric) of each line."""
    help: str = ""


CHARTS: tuple[Chart, ...] = (
    Chart("Learning", "Reward", (("mean", "reward/mean"),), "mean score of the step's responses"),
    Chart("Learning", "Held-out reward", (("greedy", "eval/reward_mean"), ("sampled", "eval/sampled_reward_mean"))),
    Chart("Learning", "Held-out accuracy", (("accuracy", "eval/accuracy"), ("low", "eval/accuracy_low"),
                                            ("high", "eval/accuracy_high"),
                                            ("length rule", "eval/length_rule_accuracy")),
          "share of prompts solved, or of comparisons that the reward model gets right"),
    Chart("Learning", "Training accuracy", (("accuracy", "train/accuracy"),), "share of comparisons"),
    Chart("Reward model", "Score", (("mean", "eval/score_mean"), ("std", "eval/score_std"),
                                    ("gap to the best other", "eval/score_gap"))),
    Chart("Reward model", "Calibration error", (("expected", "eval/calibration_error"),)),
    Chart("Reward model", "Score and length", (("correlation", "eval/length_correlation"),)),
    Chart("Learning", "Loss", (("training", "train/loss"), ("held-out", "eval/loss"))),
    Chart("Learning", "Token accuracy", (("held-out", "eval/token_accuracy"),)),
    Chart("Learning", "Reward spread", (("std", "reward/std"), ("min", "reward/min"), ("max", "reward/max"))),
    Chart("Learning", "Groups without signal", (("fraction", "groups/constant_fraction"),), "all scores equal"),
    Chart("Learning", "Failed rewards", (("fraction", "reward/failed_fraction"),)),
    Chart("Policy", "KL to the reference", (("per response", "kl/reference"),), "nats"),
    Chart("Policy", "KL per token", (("per token", "kl/reference_per_token"),), "nats"),
    Chart("Policy", "KL coefficient", (("coefficient", "kl/coef"),)),
    Chart("Policy", "Entropy", (("entropy", "policy/entropy"),), "nats per token"),
    Chart("Policy", "Clipped tokens", (("both", "policy/clip_fraction"), ("low", "policy/clip_fraction_low"),
                                       ("high", "policy/clip_fraction_high"))),
    Chart("Policy", "Gradient norm", (("before clipping", "policy/grad_norm"),)),
    Chart("Policy", "Learning rate", (("learning rate", "policy/learning_rate"),)),
    Chart("Critic", "Explained variance", (("returns of the step", "critic/explained_variance"),
                                            ("held-out scores", "eval/explained_variance")),
          "1 is perfect, 0 no better than a constant"),
    Chart("Critic", "Value against return", (("value", "critic/value_mean"), ("return", "critic/return_mean"),
                                              ("held-out value", "eval/value_mean")),
          "means per token; held out, before the first one"),
    Chart("Critic", "Value loss", (("loss", "critic/loss"),)),
    Chart("Critic", "Clipped values", (("fraction of tokens", "critic/clip_fraction"),)),
    Chart("Responses", "Length", (("mean", "rollout/response_tokens_mean"), ("max", "rollout/response_tokens_max")),
          "tokens"),
    Chart("Responses", "Cut at the limit", (("training", "rollout/truncated_fraction"),
                                            ("held-out", "eval/truncated_fraction"))),
    Chart("Responses", "Sampler against trainer",
          (("mean", "rollout/logprob_diff_mean"), ("max", "rollout/logprob_diff_max")), "log-probability gap"),
    Chart("Conversations", "Turns of the policy", (("training", "conversation/turns_mean"),
                                                    ("held-out", "eval/conversation/turns_mean")), "mean per response"),
    Chart("Conversations", "Responses that call a tool", (("training", "conversation/called_fraction"),
                                                          ("held-out", "eval/conversation/called_fraction"))),
    Chart("Conversations", "What the environment pays", (("training", "conversation/environment_reward_mean"),
                                                         ("held-out", "eval/conversation/environment_reward_mean")),
          "mean per response"),
    Chart("Conversations", "Ended by the limit of turns", (("training", "conversation/out_of_turns_fraction"),
                                                           ("held-out", "eval/conversation/out_of_turns_fraction")),
          "share of responses"),
    Chart("Conversations", "Sampled tokens", (("training", "conversation/sampled_tokens_mean"),
                                              ("held-out", "eval/conversation/sampled_tokens_mean")),
          "mean per response, without what tools and environments said"),
    Chart("Conversations", "Calls of tools", (("calls", "tool/calls"),), "of the whole step"),
    Chart("Conversations", "Calls per turn", (("calls", "tool/calls_per_turn"),)),
    Chart("Conversations", "Calls that went wrong", (("cannot be read", "tool/malformed_fraction"),
                                                     ("cannot be made", "tool/invalid_fraction"),
                                                     ("failed", "tool/failed_fraction"),
                                                     ("of these, too slow", "tool/timed_out_fraction")),
          "share of calls"),
    Chart("Conversations", "Results cut short", (("of tools", "tool/cut_fraction"),
                                                 ("of environments", "environment/cut_fraction"))),
    Chart("Conversations", "Failed environments", (("of those started", "environment/failed_fraction"),
                                                   ("of those started, too slow", "environment/timed_out_fraction"),
                                                   ("training responses", "conversation/failed_fraction"),
                                                   ("held-out responses", "eval/conversation/failed_fraction")),
          "their responses have no score"),
    Chart("Conversations", "Environments started", (("environments", "environment/opened"),)),
    Chart("Conversations", "Restarts of what starts tools and environments", (("restarts", "conversation/restarts"),)),
    Chart("Conversations", "Agents", (("started", "agent/started"), ("turns", "agent/turns"),
                                      ("requests refused", "agent/refused"))),
    Chart("Conversations", "Failed agents", (("of those started", "agent/failed_fraction"),
                                             ("too slow", "agent/timed_out_fraction")),
          "their responses have no score"),
    Chart("Conversations", "Rows of a response", (("all", "conversation/rows_mean"),
                                                  ("of agents", "agent/branches_mean")),
          "more than 1: histories were written anew, or edited"),
    Chart("Conversations", "Waiting for tools and environments", (("seconds", _ANSWERS_SECONDS),),
          "seconds in which nothing was sampled"),
    Chart("Speed", "Throughput", (("generate", "throughput/generate_tokens_per_second"),
                                  ("update", "throughput/update_tokens_per_second"),
                                  ("whole step", "throughput/response_tokens_per_second"),
                                  ("training", "throughput/tokens_per_second")), "tokens per second"),
)  # fmt: skip

FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    ("Learning", "Reward by part", "reward/part/", ""),
    ("Learning", "Reward by domain", "reward/domain/", ""),
    ("Learning", "Held-out reward by domain", "eval/domain/", "/reward_mean"),
    ("Learning", "Held-out accuracy by domain", "eval/domain/", "/accuracy"),
    ("Learning", "Held-out failures by domain", "eval/domain/", "/failed_fraction"),
    ("Learning", "Held-out length by domain", "eval/domain/", "/response_tokens_mean"),
    ("Learning", "Held-out responses cut, by domain", "eval/domain/", "/truncated_fraction"),
    ("Learning", "Held-out reward by part", "eval/part/", ""),
    ("Learning", "Audits: rewards that nothing learns from", "reward/audit/", ""),
    ("Learning", "Audits that failed", "reward/audit_failed_fraction/", ""),
    ("Learning", "Responses that a reward is not for", "reward/not_mine_fraction/", ""),
    ("Domains", "Solved", "domain/", "/solved_fraction"),
    ("Domains", "Prompts trained on", "domain/", "/prompts"),
    ("Domains", "Prompts missing", "domain/", "/missing"),
    ("Domains", "Groups left out", "domain/", "/left_out_fraction"),
    ("Domains", "Groups with equal scores", "domain/", "/constant_fraction"),
    ("Domains", "Length of responses", "domain/", "/response_tokens_mean"),
    ("Domains", "Cut at the limit", "domain/", "/truncated_fraction"),
    ("Learning", "Solved in k samples", "eval/pass@", ""),
    ("Speed", "Seconds of reward workers", "time/reward_worker_seconds/", ""),
    ("Reward model", "Accuracy by lead", "eval/accuracy_by_gap/", ""),
    ("Reward model", "Accuracy by labelled margin", "eval/accuracy_by_margin/", ""),
)
"""Section, title, and the prefix and suffix of the metrics that share one chart, each with its own line."""


def build_charts(rows: Sequence[Mapping[str, float]]) -> list[ChartData]:
    """Build the charts that the run has data for. Other metrics follow in "Further", each with its own chart."""
    data = columns([dict(row) for row in rows])
    known = list(named_charts(data))
    charts = [_chart(one.section, one.title, one.help, one.metrics, data) for one in known]
    charts.append(_chart("Speed", "Seconds per step", "", (("step", "time/step_seconds"),), data))
    remark = "seconds of engines, of all rollout workers together, without evaluation"
    charts.append(_chart("Speed", "Sampling", remark, _SAMPLING, data))
    charts.append(_chart("Speed", "Starting and waking of vLLM", "seconds, parts of other phases", _ENGINE, data))
    if _WAIT in data:
        charts.append(_chart("Speed", "Sampling ahead", "seconds next to the steps", _AHEAD, data))
    charts.append(_time_split(data))
    named = {metric for one in known for _, metric in one.metrics}
    further = [name for name in data if name not in named and not _is_phase(name)]
    charts += [_chart("Further", name, explain(name), ((name, name),), data) for name in further]
    return [chart for chart in charts if chart["series"]]


def named_charts(names: Collection[str]) -> Iterator[Chart]:
    """Yield the charts of `CHARTS` and `FAMILIES` with those of their metrics that a run has. A chart of one metric
    says what that means."""
    for chart in CHARTS:
        about = chart.help or (explain(chart.metrics[0][1]) if len(chart.metrics) == 1 else "")
        yield replace(chart, metrics=tuple(one for one in chart.metrics if one[1] in names), help=about)
    for section, title, begin, end in FAMILIES:
        family = [name for name in names if name.startswith(begin) and name.endswith(end)]
        labels = (name.removeprefix(begin).removesuffix(end) for name in family)
        yield Chart(section, title, tuple(zip(labels, family, strict=True)))


def overlay(runs: Sequence[tuple[str, Sequence[ChartData]]]) -> list[ChartData]:
    """Overlay the line charts of several runs that have the same title. Charts of a single run are kept.

    Each series has the number of its run (`run`) and of its metric in the chart (`metric`). Stacked charts and scatter
    plots cannot be overlaid and are left out.
    """
    found: dict[tuple[str, str], ChartData] = {}
    labels: dict[tuple[str, str], list[str]] = {}
    lines = [(number, name, chart) for number, (name, charts) in enumerate(runs) for chart in charts]
    for number, name, chart in lines:
        if chart["kind"] != "line":
            continue
        key = (chart["section"], chart["title"])
        into = found.setdefault(key, {**chart, "series": []})
        known = labels.setdefault(key, [])
        for series in chart["series"]:
            if series["label"] not in known:
                known.append(series["label"])
            metric = known.index(series["label"])
            into["series"].append({**series, "label": f"{name}: {series['label']}", "run": number, "metric": metric})
        if chart["help"] != into["help"]:  # such as held-out scores, whose help names the step of one run
            into["help"] = into["help"].partition(";")[0]
    return list(found.values())


def histogram_chart(counts: Histogram) -> ChartData:
    """The chart of a score histogram: counts at the centres of the bins, for the best candidates and for the others."""
    edges = counts["edges"]
    middles = [float(f"{(low + high) / 2:.6g}") for low, high in pairwise(edges)]
    series: list[Series] = [
        {"label": "best", "x": middles, "y": counts["best"]},
        {"label": "others", "x": middles, "y": counts["others"]},
    ]
    remark = f"responses by score, not by step; evaluation after step {counts['step']}"
    return ChartData(
        section="Reward model", title="Held-out scores", help=remark, kind="line", axis="score", series=series
    )


def headline(rows: Sequence[Mapping[str, float]]) -> list[dict[str, str]]:
    """The main numbers, at the top of the page: their first and their latest value."""
    data = columns([dict(row) for row in rows])
    tiles = [{"label": "step", "value": str(rows[-1]["step"]), "before": ""}]
    wanted = (
        ("reward", "reward/mean", ".3g"),
        ("held-out reward", "eval/reward_mean", ".3g"),
        ("held-out accuracy", "eval/accuracy", ".1%"),
        ("loss", "train/loss", ".4g"),
        ("held-out loss", "eval/loss", ".4g"),
        ("KL to reference", "kl/reference", ".3g"),
        ("turns", "conversation/turns_mean", ".2f"),
        ("response tokens", "rollout/response_tokens_mean", ".1f"),
    )
    for label, name, spec in wanted:
        if name in data:
            values = data[name][1]
            before = f"from {format(values[0], spec)}" if len(values) > 1 else ""
            tiles.append({"label": label, "value": format(values[-1], spec), "before": before})
    seconds = [sum(data[name][1]) for name in ("time/step_seconds", "time/evaluate_seconds") if name in data]
    if seconds:
        tiles.append({"label": "time in steps", "value": duration(sum(seconds)), "before": ""})
    return tiles


def evenly(items: Sequence[T], limit: int) -> list[T]:
    """Pick at most `limit` items, evenly spread, with the first and the last one; with a limit of 1, the last."""
    if len(items) <= limit:
        return list(items)
    if limit == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def _chart(
    section: str, title: str, remark: str, metrics: Sequence[tuple[str, str]], data: Mapping[str, Column]
) -> ChartData:
    series = [_series(label, data[name]) for label, name in metrics if name in data]
    return {"section": section, "title": title, "help": remark, "kind": "line", "series": series}


def _series(label: str, column: Column) -> Series:
    steps, values = column
    picked = peaks(values, MAX_POINTS)
    return {"label": label, "x": [steps[i] for i in picked], "y": [float(f"{values[i]:.6g}") for i in picked]}


def peaks(values: Sequence[float], limit: int) -> list[int]:
    """Pick at most `limit` (4 or more) positions: first, lowest, highest and last of equal stretches, so that outliers
    of a single step stay visible."""
    if len(values) <= limit:
        return list(range(len(values)))
    bounds = evenly(range(len(values) + 1), limit // 4 + 1)
    stretches = [range(start, stop) for start, stop in pairwise(bounds)]
    return sorted(
        {i for r in stretches for i in (r[0], min(r, key=values.__getitem__), max(r, key=values.__getitem__), r[-1])}
    )


def _means(label: str, column: Column) -> Series:
    """Thin a column by means. For stacks, whose layers need the same steps and whose sums a mean preserves."""
    steps, values = column
    if len(steps) <= MAX_POINTS:
        return _series(label, column)
    stretches = [*pairwise(evenly(range(len(steps) + 1), MAX_POINTS + 1))]
    means = [float(f"{sum(values[start:stop]) / (stop - start):.6g}") for start, stop in stretches]
    return {"label": label, "x": [steps[start] for start, _ in stretches], "y": means}


def _time_split(data: Mapping[str, Column]) -> ChartData:
    """Seconds of each phase, stacked. A phase that is missing in a step took 0 seconds."""
    # The sum, and parts of `generate`.
    counted = {"time/step_seconds", _ANSWERS_SECONDS, *(name for _, name in (*_SAMPLING, *_ENGINE))}
    if _WAIT in data:  # a batch that is sampled ahead takes its time in parallel to the step
        counted |= {name for _, name in _AHEAD}
    names = [name for name in data if _is_phase(name) and name not in counted]
    steps = sorted({step for name in names for step in data[name][0]})
    filled = {name: dict(zip(*data[name], strict=True)) for name in names}
    series = [
        _means(name.removeprefix("time/").removesuffix("_seconds"), (steps, [filled[name].get(s, 0.0) for s in steps]))
        for name in names
    ]
    return {"section": "Speed", "title": "Time by phase", "help": "seconds per step", "kind": "stack", "series": series}


def _is_phase(name: str) -> bool:
    return name.startswith("time/") and name.endswith("_seconds") and name.count("/") == 1
