"""One metric of several runs: a mean with its interval for each group of runs, and differences between the groups.

Runs differ in what their recorded configurations say. Runs of one group differ in nothing but their seed, or in what
`by` does not name. Two groups are compared run by run, between runs that agree in everything else: these share the
order of the prompts and the noise of sampling, so their difference varies less than the runs do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.checkpointing.chaining import is_best_when_lowest
from burnish.checkpointing.run import RunDirectory
from burnish.config.kinds import find_kind
from burnish.config.loading import kind_of_data
from burnish.errors import DataError
from burnish.experiments.statistics import Interval, mean_interval, paired_difference, unpaired_difference
from burnish.observability.history import columns, read_rows
from burnish.report.report import departures, leaves, run_names
from burnish.report.turns import as_text
from burnish.types import Json
from burnish.words import suggestion

if TYPE_CHECKING:
    from pandas import DataFrame

SEED = "seed"
TOKENS = ("rollout/response_tokens_sum", "train/tokens")
"""Tokens of a step: the sampled ones of `rl`, else those that were read."""
_SAME_RESULT = ("output", "logging", "checkpoint")
"""Fields that change nothing that is measured."""

Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run as its folder tells it: the fields of its configuration by dotted path, those that neither the defaults nor
    its preset set, and its metrics as (steps, values)."""

    name: str
    folder: Path
    kind: str
    fields: Mapping[str, Json]
    departures: tuple[str, ...]
    metrics: Mapping[str, tuple[list[int], list[float]]]

    def value(self, field: str) -> str:
        """The value of a field as text; empty if the run has no such field."""
        return as_text(self.fields[field]) if field in self.fields else ""

    def measured(self, metric: str, step: int | None) -> float:
        """The last value of a metric, or that at a step."""
        steps, values = self.metrics[metric]
        return values[-1 if step is None else steps.index(step)]

    def tokens_until(self, step: int) -> float | None:
        """Tokens of all steps up to this one. None if the run does not count any."""
        for name in TOKENS:
            if name in self.metrics:
                return sum(value for at, value in zip(*self.metrics[name], strict=True) if at <= step)
        return None


@dataclass(frozen=True, slots=True)
class Reached:
    """The first step of each run at which a metric passes a threshold, as far as it does, and the tokens until then.
    Without all of the runs there is no mean: it would be one of the fast runs alone."""

    runs: int
    of: int
    steps: Interval | None
    tokens: Interval | None


@dataclass(frozen=True, slots=True)
class Group:
    """Runs with the same values of the fields that are compared, and the metric of each."""

    settings: Mapping[str, str]
    runs: tuple[RecordedRun, ...]
    values: tuple[float, ...]
    mean: Interval
    reached: Reached | None

    @property
    def label(self) -> str:
        return group_label(self.settings)


@dataclass(frozen=True, slots=True)
class Difference:
    """The metric of a group less that of the baseline: over the runs that have a partner there (None without any), and
    as if the two groups had nothing in common."""

    group: Group
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
    groups: tuple[Group, ...]
    differences: tuple[Difference, ...]
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
        from burnish.experiments.figure import draw

        return draw(self, Path(path))

    def __str__(self) -> str:
        from burnish.experiments.formats import as_plain_text

        return as_plain_text(self)

    __repr__ = __str__


def table(
    runs: Sequence[str | Path],
    metric: str | None = None,
    *,
    by: str | Sequence[str] = (),
    threshold: float | None = None,
    step: int | None = None,
    baseline: str | None = None,
) -> ResultsTable:
    """Compare a metric of several runs, as `burnish table` does.

    `runs` are folders of runs, or folders that hold them. `metric` is by default what the best checkpoint is chosen by,
    such as eval/accuracy; its last value of each run counts, or that at `step`. `by` names the fields to compare, by
    default all in which the runs differ except the seed. `threshold`: also the steps and tokens until the metric first
    reaches it. `baseline`: the group, by its label, that the others are compared with (the first).

    Raises DataError for folders that are no runs, and for runs that cannot be compared.
    """
    notes: list[str] = []
    found = read_runs([Path(run) for run in runs], notes)
    metric = metric or _usual_metric(found)
    found = _with_metric(found, metric, step, notes)
    fields = differing_fields(found)
    compared = _compared(found, fields, [by] if isinstance(by, str) else by)
    shown, hidden = _without_repetition(found, compared)
    others = [name for name in fields if name not in compared]
    rest = [name for name in others if name == SEED or not _follows(found, name, shown)]
    also = [*hidden, *(name for name in others if name not in rest)]
    if also:
        notes.append(f"these differ along with {', '.join(shown) or 'the runs'}: {', '.join(also)}")
    groups = [_group(some, shown, metric, step, threshold) for some in _split(found, shown).values()]
    mixed = [name for name in rest if name != SEED and any(len(_split(g.runs, [name])) > 1 for g in groups)]
    if mixed:
        notes.append(f"runs of one group differ in {', '.join(mixed)}: their spread is not that of seeds alone")
    first = _baseline(groups, baseline)
    ordered = [first, *(group for group in groups if group is not first)]
    partners = _by_rest(first, rest)
    differences = [_difference(group, first, _by_rest(group, rest), partners) for group in ordered[1:]]
    return ResultsTable(metric, threshold, tuple(ordered), tuple(differences), tuple(notes))


def read_runs(folders: Sequence[Path], notes: list[str]) -> list[RecordedRun]:
    """Read the runs in these folders, and those in folders that hold some. Anything else is left out with a note."""
    chosen: list[Path] = []
    for folder in folders:
        inner = sorted(config.parent for config in folder.glob("*/config.yaml"))
        if RunDirectory(folder).begun():
            chosen.append(folder)
        elif inner:
            chosen += [place for place in inner if ".old-" not in place.name]
        else:
            notes.append(f"{folder} is left out: it is not a run")
    if not chosen:
        raise DataError("none of these is the folder of a run", remedy="give folders with a config.yaml: runs/*")
    return [_read(folder, name) for folder, name in zip(chosen, run_names(chosen), strict=True)]


def _read(folder: Path, name: str) -> RecordedRun:
    resolved = RunDirectory(folder).read_config()
    own = tuple(departure.path for departure in departures(resolved))
    metrics = columns(read_rows(folder / "metrics.jsonl"))
    return RecordedRun(name, folder, kind_of_data(resolved), leaves(resolved), own, metrics)


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
    last = {run.name: run.metrics[metric][0][-1] for run in measured} if step is None else {}
    if len(set(last.values())) > 1:
        several = ", ".join(f"{name} {at}" for name, at in last.items())
        notes.append(f"the last values are of different steps (--step compares one step): {several}")
    return measured


def differing_fields(runs: Sequence[RecordedRun]) -> list[str]:
    """Fields, set by more than a preset, in which the runs differ and that may affect what is measured."""
    own = dict.fromkeys(field for run in runs for field in run.departures)
    named = [field for field in own if not field.startswith(tuple(f"{name}." for name in _SAME_RESULT))]
    return [field for field in named if field not in _SAME_RESULT and len(_split(runs, [field])) > 1]


def _compared(runs: Sequence[RecordedRun], fields: Sequence[str], by: Sequence[str]) -> list[str]:
    """The fields that `by` names, alone or as a section; without it all but the seed."""
    if not by:
        return [field for field in fields if field != SEED]
    named = [word for words in by for word in words.split(",")]
    found = {word: [field for field in fields if f"{field}.".startswith(f"{word}.")] for word in named}
    for word in (word for word in named if not found[word]):
        known = any(f"{field}.".startswith(f"{word}.") for run in runs for field in run.fields)
        problem = f"the runs do not differ in {word}" if known else f"{word} is not a field of these runs"
        raise DataError(problem, remedy=f"they differ in: {', '.join(fields) or 'nothing'}")
    return list(dict.fromkeys(field for word in named for field in found[word]))


def _without_repetition(runs: Sequence[RecordedRun], fields: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields that tell the groups apart, and those that only follow the ones before them."""
    shown: list[str] = []
    for field in sorted(fields, key=lambda field: not field.endswith("preset")):
        if not _follows(runs, field, shown):
            shown.append(field)
    return shown, [field for field in fields if field not in shown]


def _follows(runs: Sequence[RecordedRun], field: str, fields: Sequence[str]) -> bool:
    """Return whether the values of `fields` determine that of `field`."""
    return len(_split(runs, [*fields, field])) == len(_split(runs, fields))


def _split(runs: Sequence[RecordedRun], fields: Sequence[str]) -> dict[Values, list[RecordedRun]]:
    found: dict[Values, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(tuple(run.value(field) for field in fields), []).append(run)
    return found


def _group(
    runs: Sequence[RecordedRun], shown: Sequence[str], metric: str, step: int | None, threshold: float | None
) -> Group:
    values = tuple(run.measured(metric, step) for run in runs)
    reached = None if threshold is None else _reached(runs, metric, threshold)
    return Group({field: runs[0].value(field) for field in shown}, tuple(runs), values, mean_interval(values), reached)


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


def _baseline(groups: Sequence[Group], label: str | None) -> Group:
    if label is None:
        return groups[0]
    for group in groups:
        if label in (group.label, *group.settings.values()):
            return group
    labels = [group.label for group in groups]
    raise DataError(f"no group of runs is called {label!r}", remedy=suggestion(label, labels))


def _difference(
    group: Group, baseline: Group, ours: Mapping[Values, float], theirs: Mapping[Values, float]
) -> Difference:
    shared = [key for key in theirs if key in ours]
    pairs = [theirs[key] for key in shared], [ours[key] for key in shared]
    paired = paired_difference(*pairs) if shared else None
    return Difference(group, paired, unpaired_difference(baseline.values, group.values))


def _by_rest(group: Group, rest: Sequence[str]) -> dict[Values, float]:
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


def group_label(settings: Mapping[str, str]) -> str:
    """Name a group by its values: `grpo`, or `algorithm=grpo, group_size=8` if several fields differ."""
    if len(settings) < 2:
        return next(iter(settings.values()), "all runs")
    return ", ".join(f"{short_name(field, settings)}={value}" for field, value in settings.items())


def short_name(field: str, fields: Collection[str]) -> str:
    """The last part of a dotted path, or as many as no other path ends in. A preset has the name of its section."""
    parts = [part for part in field.split(".") if part != "preset"] or [field]
    others = [other.removesuffix(".preset") for other in fields if other != field]
    ends = accumulate(reversed(parts), lambda tail, part: f"{part}.{tail}")
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), field)


def _row(group: Group, difference: Difference | None, metric: str) -> dict[str, Json]:
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
