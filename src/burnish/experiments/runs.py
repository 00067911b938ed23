"""Recorded runs: what their folders tell of their settings and metrics, and in which settings they differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from burnish.board.configuration import departures, leaves
from burnish.board.report import run_names
from burnish.board.turns import as_text
from burnish.checkpointing.run import RunDirectory
from burnish.config.loading import kind_of_data
from burnish.errors import DataError
from burnish.observability.control import read_ending
from burnish.observability.history import TOKENS, columns, read_rows
from burnish.types import Json

SEED = "seed"
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

    def may_be_finished(self) -> bool:
        """Return whether the run is finished, or its configuration does not tell how many steps it has."""
        steps, last = self.fields.get("steps"), max((at[-1] for at, _ in self.metrics.values()), default=0)
        return read_ending(self.folder) is not None or not isinstance(steps, int) or last >= steps

    def measured(self, metric: str, step: int | None) -> float:
        """The last value of a metric, or that at a step."""
        steps, values = self.metrics[metric]
        return values[-1 if step is None else steps.index(step)]

    def tokens_until(self, step: int) -> float | None:
        """Tokens of all steps up to this one. None if the run does not count any."""
        name = next((name for name in TOKENS if name in self.metrics), None)
        return None if name is None else sum(n for at, n in zip(*self.metrics[name], strict=True) if at <= step)


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
        named = ", ".join(map(str, folders))
        raise DataError(f"no folder of a run among {named}", remedy="give folders with a config.yaml: runs/*")
    return [_read(folder, name) for folder, name in zip(chosen, run_names(chosen), strict=True)]


def _read(folder: Path, name: str) -> RecordedRun:
    resolved = RunDirectory(folder).read_config()
    own = tuple(departure.path for departure in departures(resolved))
    metrics = columns(read_rows(folder / "metrics.jsonl"))
    return RecordedRun(name, folder, kind_of_data(resolved), leaves(resolved), own, metrics)


def differing_fields(runs: Sequence[RecordedRun]) -> list[str]:
    """Fields, set by more than a preset, in which the runs differ and that may affect what is measured."""
    own = dict.fromkeys(field for run in runs for field in run.departures)
    named = [field for field in own if field.partition(".")[0] not in _SAME_RESULT]
    return [field for field in named if len(split_by(runs, [field])) > 1]


def without_repetition(runs: Sequence[RecordedRun], fields: Sequence[str]) -> tuple[list[str], list[str]]:
    """The fields that tell the groups apart, and those that only follow the ones before them."""
    shown: list[str] = []
    for field in sorted(fields, key=lambda field: not field.endswith("preset")):
        if not follows(runs, field, shown):
            shown.append(field)
    return shown, [field for field in fields if field not in shown]


def follows(runs: Sequence[RecordedRun], field: str, fields: Sequence[str]) -> bool:
    """Return whether the values of `fields` determine that of `field`."""
    return len(split_by(runs, [*fields, field])) == len(split_by(runs, fields))


def split_by(runs: Sequence[RecordedRun], fields: Sequence[str]) -> dict[Values, list[RecordedRun]]:
    found: dict[Values, list[RecordedRun]] = {}
    for run in runs:
        found.setdefault(tuple(run.value(field) for field in fields), []).append(run)
    return found


def short_name(field: str, fields: Collection[str]) -> str:
    """The last part of a dotted path, or as many as no other path ends in. A preset has the name of its section."""
    parts = [part for part in field.split(".") if part != "preset"] or [field]
    others = [other.removesuffix(".preset") for other in fields if other != field]
    ends = accumulate(reversed(parts), lambda tail, part: f"{part}.{tail}")
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), field)
