"""One metric of several runs: a mean with its interval for each group of runs, and differences between the groups.

Runs differ in what their recorded configurations say. Runs of one group differ in nothing but their seed, or in what
`by` does not name. Two groups are compared run by run, between runs that agree in everything else: these share the
order of the prompts and the noise of sampling, so their difference varies less than the runs do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.algorithms.statistics import Interval, mean_interval, paired_difference, unpaired_difference
from burnish.checkpointing.chaining import is_best_when_lowest
from burnish.config.kinds import find_kind
from burnish.errors import ConfigError, DataError, suggestion
from burnish.experiments.figure import Curve, draw
from burnish.experiments.formats import CSV, FORMATS, Block, as_csv, decimals_of, in_words, short_number
from burnish.experiments.runs import (
    SEED,
    RecordedRun,
    Values,
    differing_fields,
    follows,
    read_runs,
    short_name,
    split_by,
    without_repetition,
)
from burnish.types import Json

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Reached:
    """The first step of each run at which a metric passes a threshold, as far as it does, and the tokens until then.
    Without all of the runs there is no mean: it would be the mean of the fast runs alone."""

    runs: int
    of: int
    steps: Interval | None
    tokens: Interval | None


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs with the same values of the fields that are compared, and the metric of each."""

    settings: Mapping[str, str]
    runs: tuple[RecordedRun, ...]
    values: tuple[float, ...]
    mean: Interval
    reached: Reached | None

    @property
    def label(self) -> str:
        """The values of the fields: `grpo`, or `algorithm=grpo, group_size=8` if several differ."""
        if len(self.settings) < 2:
            return next(iter(self.settings.values()), "all runs")
        return ", ".join(f"{short_name(field, self.settings)}={value}" for field, value in self.settings.items())

    def curve(self, metric: str) -> dict[int, Interval]:
        """The mean of the runs with its interval, at the steps at which all of them have measured a metric: over fewer,
        a curve would jump where a run ends."""
        series = [dict(zip(*run.metrics[metric], strict=True)) for run in self.runs]
        shared = [step for step in series[0] if all(step in other for other in series)]
        return {step: mean_interval([one[step] for one in series]) for step in shared}


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """The metric of a group minus the baseline's: over the runs that have a partner there (None without any), and as if
    the two groups had nothing in common."""

    group: RunGroup
    paired: Interval | None
    unpaired: Interval

    @property
    def narrowing(self) -> float | None:
        """Width of the unpaired interval in widths of the paired one. None if one of them is missing, or 0."""
        if self.paired is None or not self.paired.half_width or self.unpaired.half_width is None:
            return None
        return self.unpaired.half_width / self.paired.half_width


@dataclass(frozen=True, slots=True)
class ResultsTable:
    """Groups of runs with their means and intervals, and the differences of all others from the first, the baseline.
    Print it for an overview."""

    metric: str
    threshold: float | None
    groups: tuple[RunGroup, ...]
    differences: tuple[GroupDifference, ...]
    notes: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Json]]:
        """A row of plain data for each group: its settings, runs, mean, interval, and difference from the baseline."""
        by_group = {id(difference.group): difference for difference in self.differences}
        return [_row(group, by_group.get(id(group)), self.metric) for group in self.groups]

    @property
    def frame(self) -> DataFrame:
        """The rows as a pandas table. ImportError if pandas is not installed."""
        import pandas

        return pandas.DataFrame(self.rows)

    @property
    def lower_is_better(self) -> bool:
        return is_best_when_lowest(self.metric)

    def figure(self, path: str | Path) -> Path:
        """Draw the mean of each group over the steps, with its interval as a band, and return the path. ConfigError
        without matplotlib."""
        curves = [Curve(f"{group.label} ({len(group.runs)})", group.curve(self.metric)) for group in self.groups]
        return draw(curves, Path(path), metric=self.metric, threshold=self.threshold)

    def written(self, form: str = "text") -> str:
        """The table as `text`, `markdown`, `latex` or `csv`. ConfigError for another form."""
        if form == CSV:
            return as_csv(self.rows)
        if form not in FORMATS:
            raise ConfigError(f"a table cannot be written as {form!r}", remedy=suggestion(form, (*FORMATS, CSV)))
        return FORMATS[form](blocks(self), self.notes)

    def __str__(self) -> str:
        return self.written()

    __repr__ = __str__


def table(
    runs: str | Path | Sequence[str | Path],
    metric: str | None = None,
    *,
    by: str | Sequence[str] = (),
    threshold: float | None = None,
    step: int | None = None,
    baseline: str | None = None,
) -> ResultsTable:
    """Compare a metric of several runs, as `burnish table` does.

    `runs` are folders of runs, or folders that hold them, or one such folder. `metric` is by default what the best
    checkpoint is chosen by, such as eval/accuracy; its last value of each run counts, or that at `step`. `by` names the
    fields to compare, by default all in which the runs differ except the seed. `threshold`: also the steps and tokens
    until the metric first reaches it. `baseline`: the group, by its label, that the others are compared with (the
    first).

    Raises DataError for folders that are not runs, and for runs that cannot be compared.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"threshold is {threshold}, which no metric passes", remedy="give a number, such as 0.9")
    notes: list[str] = []
    found = read_runs([Path(run) for run in ([runs] if isinstance(runs, (str, Path)) else runs)], notes)
    metric = metric or _usual_metric(found)
    found = _with_metric(found, metric, step, notes)
    fields = differing_fields(found)
    compared = _compared(found, fields, [by] if isinstance(by, str) else by)
    shown, hidden = without_repetition(found, compared)
    others = [name for name in fields if name not in compared]
    rest = [name for name in others if name == SEED or not follows(found, name, shown)]
    also = [*hidden, *(name for name in others if name not in rest)]
    if also:
        notes.append(f"these differ along with {', '.join(shown) or 'the runs'}: {', '.join(also)}")
    groups = [_group(some, shown, metric, step, threshold) for some in split_by(found, shown).values()]
    mixed = [name for name in rest if name != SEED and any(len(split_by(g.runs, [name])) > 1 for g in groups)]
    if mixed:
        notes.append(f"runs of one group differ in {', '.join(mixed)}: their spread does not come from seeds alone")
    first = _baseline(groups, baseline)
    ordered = [first, *(group for group in groups if group is not first)]
    partners = _by_rest(first, rest)
    differences = [_difference(group, first, _by_rest(group, rest), partners) for group in ordered[1:]]
    return ResultsTable(metric, threshold, tuple(ordered), tuple(differences), tuple(notes))


def _usual_metric(runs: Sequence[RecordedRun]) -> str:
    """The first metric by which the best checkpoint is chosen that some run has measured."""
    usual = dict.fromkeys(name for run in runs for name in find_kind(run.kind).best)
    found = next((name for name in usual if any(name in run.metrics for run in runs)), None)
    if found is None:
        raise DataError(f"no run has measured {' or '.join(usual)}", remedy="name another metric: --metric NAME")
    return found


def _with_metric(runs: Sequence[RecordedRun], metric: str, step: int | None, notes: list[str]) -> list[RecordedRun]:
    """The runs that have measured the metric (at this step), with a note about the others, and about those that are at
    different steps."""
    measured = [run for run in runs if metric in run.metrics and (step is None or step in run.metrics[metric][0])]
    at = "" if step is None else f" at step {step}"
    if not measured:
        known = dict.fromkeys(name for run in runs for name in run.metrics)
        steps = sorted({at for run in runs if metric in run.metrics for at in run.metrics[metric][0]})
        remedy = f"it was measured at steps {', '.join(map(str, steps))}" if steps else suggestion(metric, known)
        raise DataError(f"no run has measured {metric}{at}", remedy=remedy)
    notes += [f"{run.name} is left out: it has not measured {metric}{at}" for run in runs if run not in measured]
    notes += [f"{run.name} is not finished" for run in measured if step is None and not run.may_be_finished()]
    last = {run.name: run.metrics[metric][0][-1] for run in measured} if step is None else {}
    if len(set(last.values())) > 1:
        several = ", ".join(f"{name} {at}" for name, at in last.items())
        notes.append(f"the last values are of different steps (--step compares one step): {several}")
    return measured


def _compared(runs: Sequence[RecordedRun], fields: Sequence[str], by: Sequence[str]) -> list[str]:
    """The fields that `by` names, alone or as a section; without it all but the seed."""
    if not by:
        return [field for field in fields if field != SEED]
    named = [word for words in by for word in words.split(",")]
    found = {word: [field for field in fields if f"{field}.".startswith(f"{word}.")] for word in named}
    for word in (word for word in named if not found[word]):  # it may be set by presets alone
        known = sorted({field for run in runs for field in run.fields if f"{field}.".startswith(f"{word}.")})
        found[word] = [field for field in known if len(split_by(runs, [field])) > 1]
        if not found[word]:
            problem = f"the runs do not differ in {word}" if known else f"{word} is not a field of these runs"
            raise DataError(problem, remedy=f"they differ in: {', '.join(fields) or 'nothing'}")
    return list(dict.fromkeys(field for word in named for field in found[word]))


def _group(
    runs: Sequence[RecordedRun], shown: Sequence[str], metric: str, step: int | None, threshold: float | None
) -> RunGroup:
    values = tuple(run.measured(metric, step) for run in runs)
    reached = None if threshold is None else _reached(runs, metric, threshold)
    settings = {field: runs[0].value(field) for field in shown}
    return RunGroup(settings, tuple(runs), values, mean_interval(values), reached)


def _reached(runs: Sequence[RecordedRun], metric: str, threshold: float) -> Reached:
    sign = -1 if is_best_when_lowest(metric) else 1
    passing = (
        next((at for at, value in zip(*run.metrics[metric], strict=True) if sign * value >= sign * threshold), None)
        for run in runs
    )
    found = {run.name: (run, at) for run, at in zip(runs, passing, strict=True) if at is not None}
    if len(found) < len(runs):
        return Reached(len(found), len(runs), None, None)
    tokens = [run.tokens_until(at) for run, at in found.values()]
    counted = [number for number in tokens if number is not None]
    each = mean_interval(counted) if len(counted) == len(runs) else None
    return Reached(len(runs), len(runs), mean_interval([at for _, at in found.values()]), each)


def _baseline(groups: Sequence[RunGroup], label: str | None) -> RunGroup:
    if label is None:
        return groups[0]
    for group in groups:
        if label in (group.label, *group.settings.values()):
            return group
    labels = [group.label for group in groups]
    raise DataError(f"no group of runs is called {label!r}", remedy=suggestion(label, labels))


def _difference(
    group: RunGroup, baseline: RunGroup, ours: Mapping[Values, float], theirs: Mapping[Values, float]
) -> GroupDifference:
    shared = [key for key in theirs if key in ours]
    pairs = [theirs[key] for key in shared], [ours[key] for key in shared]
    paired = paired_difference(*pairs) if shared else None
    return GroupDifference(group, paired, unpaired_difference(baseline.values, group.values))


def _by_rest(group: RunGroup, rest: Sequence[str]) -> dict[Values, float]:
    """The metric by the values of the other fields. DataError for two runs that agree in all of them."""
    found: dict[Values, RecordedRun] = {}
    for run in group.runs:
        same = found.setdefault(tuple(run.value(field) for field in rest), run)
        if same is not run:
            raise DataError(
                f"{same.name} and {run.name} do not differ in their settings",
                remedy="give each run once: repeated, it would make intervals narrower than they are",
            )
    return dict(zip(found, group.values, strict=True))


def _row(group: RunGroup, difference: GroupDifference | None, metric: str) -> dict[str, Json]:
    row: dict[str, Json] = {**group.settings, "metric": metric, "runs": len(group.runs), **_plain("", group.mean)}
    if group.reached is not None:
        row |= {"reached": group.reached.runs, **_plain("steps", group.reached.steps)}
        row |= _plain("tokens", group.reached.tokens)
    row |= {"pairs": 0 if difference is None or difference.paired is None else difference.paired.count}
    row |= _plain("difference", None if difference is None else difference.paired)
    row |= _plain("unpaired_difference", None if difference is None else difference.unpaired)
    return row


def _plain(name: str, interval: Interval | None) -> dict[str, Json]:
    first, prefix = (name, f"{name}_") if name else ("mean", "")
    if interval is None:
        return {first: None, f"{prefix}low": None, f"{prefix}high": None}
    return {first: interval.mean, f"{prefix}low": interval.low, f"{prefix}high": interval.high}


def blocks(table: ResultsTable) -> list[Block]:
    """The groups, and below them their differences from the first one, if there are several."""
    settings = table.groups[0].settings
    heading = short_name(next(iter(settings)), settings) if len(settings) == 1 else "runs that differ"
    headings = [heading, "runs", "mean", "95 % interval"]
    if table.threshold is not None:
        sign = "<=" if table.lower_is_better else ">="
        headings += [f"steps to {sign} {table.threshold:g}", "tokens"]
    decimals = decimals_of([group.mean for group in table.groups])
    lines = [tuple(headings), *(_group_line(group, decimals) for group in table.groups)]
    count = sum(len(group.runs) for group in table.groups)
    found = [Block(f"{table.metric} of {count} run{'s' * (count > 1)}", tuple(lines))]
    if table.differences:
        caption = (
            f"{table.metric} compared with {table.groups[0].label}, run by run. Runs that agree in all else share "
            "prompts and noise; the last column says how many times as wide the interval would be unpaired."
        )
        headings = [heading, "pairs", "difference", "95 % interval", "unpaired"]
        decimals = decimals_of([one.paired or one.unpaired for one in table.differences])
        lines = [tuple(headings), *(_difference_line(one, decimals) for one in table.differences)]
        found.append(Block(caption, tuple(lines)))
    return found


def _group_line(group: RunGroup, decimals: int) -> tuple[str, ...]:
    mean = group.mean
    cells = [group.label, str(mean.count), f"{mean.mean:.{decimals}f}", in_words(mean, f".{decimals}f")]
    return (*cells, *(_reached_cells(group.reached) if group.reached is not None else ()))


def _reached_cells(reached: Reached) -> tuple[str, str]:
    if reached.steps is None:
        return f"{reached.runs} of {reached.of} reach it", ""
    tokens = "" if reached.tokens is None else short_number(reached.tokens.mean)
    spread = reached.steps.half_width
    return f"{reached.steps.mean:.0f}" + ("" if spread is None else f" ± {spread:.0f}"), tokens


def _difference_line(one: GroupDifference, decimals: int) -> tuple[str, ...]:
    shown = one.paired or one.unpaired
    pairs = "none" if one.paired is None else str(one.paired.count)
    ratio = "" if one.narrowing is None else f"{one.narrowing:.1f} x"
    return one.group.label, pairs, f"{shown.mean:+.{decimals}f}", in_words(shown, f"+.{decimals}f"), ratio
