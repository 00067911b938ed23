"""One self-contained HTML page about one or several runs: curves, alarms, configuration, rollouts.

The page loads nothing from the network. The text of prompts and responses is embedded as data and never parsed as HTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

import jinja2
from pydantic_core import PydanticUndefined, to_jsonable_python

from burnish.config import fields
from burnish.config.kinds import find_kind
from burnish.config.loading import kind_of_data
from burnish.config.preset_layer import preset_of
from burnish.config.schema_run import RunConfig
from burnish.config.secrets import masked_yaml
from burnish.config.yaml_text import parse_yaml
from burnish.errors import BurnishError, DataError
from burnish.observability.alarms import Alarm, replay
from burnish.observability.atomic import disk_remedy, write_text_atomically
from burnish.observability.history import read_rows
from burnish.observability.sinks import METRICS_FILE
from burnish.report.charts import MAX_POINTS, ChartData, build_charts, headline, histogram_chart, overlay
from burnish.report.rollout_charts import score_charts, value_charts
from burnish.report.samples import PageLimits, Samples, sample_rollouts
from burnish.report.turns import as_text
from burnish.types import Json

HISTOGRAM_FILE = "score_histogram.json"
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_DOMAIN = re.compile(r"^domains\.[^.]+")


@dataclass(frozen=True, slots=True)
class Departure:
    """A field whose value differs from its default. `default` is also None if there is none."""

    path: str
    value: Json
    default: Json
    required: bool = False


@dataclass(frozen=True, slots=True)
class RunPage:
    """Contents of the page about one run. `departures` is None, and `values` (of all fields, by path) is empty, if
    config.yaml is missing or cannot be read."""

    name: str
    tiles: list[dict[str, str]]
    alarms: Sequence[Alarm]
    charts: list[ChartData]
    samples: Samples
    config: str | None
    departures: list[Departure] | None
    values: Mapping[str, Json]
    environment: str | None
    thinned: str = ""


class ConfigurationRow(TypedDict):
    """A field in which a run differs from the defaults, with a value for each run."""

    path: str
    values: list[str]
    default: str
    differs: bool


def write_report(run_dir: Path, out: Path | None = None, *, limits: PageLimits | None = None) -> Path:
    """Write the page (default: `report.html` in the run folder) and return its path.

    `limits` bounds the size of the page. If there are more steps or prompts, they are sampled evenly, and the page says
    so. Raises DataError if the folder is not a run's, and BurnishError if the page cannot be written.
    """
    page = read_run(run_dir, run_dir.resolve().name, limits or PageLimits())
    return _write(out if out is not None else run_dir / "report.html", page.name, [page], page.charts)


def write_comparison(run_dirs: Sequence[Path], out: Path, *, limits: PageLimits | None = None) -> Path:
    """Write one page with the curves of several runs overlaid, and return its path. Raises like `write_report`."""
    limits = limits or PageLimits()
    share = replace(limits, total_bytes=limits.total_bytes // len(run_dirs))
    names = run_names(run_dirs)
    pages = [read_run(folder, name, share) for folder, name in zip(run_dirs, names, strict=True)]
    return _write(out, " · ".join(names), pages, overlay([(page.name, page.charts) for page in pages]))


def run_names(run_dirs: Sequence[Path]) -> list[str]:
    """Name runs by the shortest suffixes of their paths (at least the folder's name) that differ for all runs."""
    parts = [folder.resolve().parts for folder in run_dirs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise DataError("the same run is given twice", remedy="give each run once")


def read_run(run_dir: Path, name: str, limits: PageLimits) -> RunPage:
    """Read everything that a page shows about a run. DataError if the folder is not a run's."""
    rows = read_rows(run_dir / METRICS_FILE)
    if not rows:
        raise DataError(
            f"{run_dir} has no {METRICS_FILE} with at least one step",
            remedy="give the folder of a run (its `output`)",
        )
    config = _masked_text(run_dir / "config.yaml")
    resolved = _resolved(config)
    return RunPage(
        name=name,
        tiles=headline(rows),
        alarms=replay(rows),
        charts=[
            *build_charts(rows),
            *_value_charts(run_dir, rows),
            *score_charts(run_dir / "rollouts"),
            *score_histogram(run_dir),
        ],
        samples=sample_rollouts(run_dir / "rollouts", limits),
        config=config,
        departures=None if resolved is None else departures(resolved),
        values={} if resolved is None else leaves(resolved),
        environment=_masked_text(run_dir / "environment.json"),
        thinned=_thinned(len(rows)),
    )


def _thinned(rows: int) -> str:
    if rows <= MAX_POINTS:
        return ""
    return (
        f"Curves show at most {MAX_POINTS} of {rows:,} steps, including their extremes, over which they are smoothed, "
        "too; Time by phase shows means. "
        f"{METRICS_FILE} has all."
    )


def configuration_table(pages: Sequence[RunPage]) -> list[ConfigurationRow]:
    """Make a row for each field in which some run differs from the defaults and its preset: field, default, and a value
    per run; empty for a run without the field. Runs with different presets may have different defaults."""
    found: dict[str, dict[str, Departure]] = {}
    for page in pages:
        for departure in page.departures or ():
            found.setdefault(departure.path, {})[page.name] = departure
    table: list[ConfigurationRow] = []
    for path, by_run in found.items():
        values = [as_text(page.values[path]) if path in page.values else "" for page in pages]
        own = {value for page, value in zip(pages, values, strict=True) if page.name not in by_run and value}
        own |= {as_text(departure.default) for departure in by_run.values()}
        default = own.pop() if len(own) == 1 else "by preset"
        if any(departure.required for departure in by_run.values()):
            default = ""
        table.append({"path": path, "values": values, "default": default, "differs": len(set(values)) > 1})
    return table


def departures(resolved: Mapping[str, Json]) -> list[Departure]:
    """Find the fields of a resolved run file (`config.yaml`) that differ from defaults and the run's preset, in order.

    Fields without a default, and fields that this version does not know, are always included.
    """
    run_file = find_kind(kind_of_data(resolved)).section
    known = _defaults(run_file)
    preset = preset_of(run_file, resolved)
    known |= dict(preset.values) if preset is not None else {}
    found = []
    for path, value in leaves(resolved).items():
        default = known.get(_NUMBER.sub(".N", _DOMAIN.sub("domains.NAME", path)), PydanticUndefined)
        required = default is PydanticUndefined
        plain = None if required else to_jsonable_python(default)
        if required or value != plain:
            found.append(Departure(path, value, plain, required))
    return found


def _defaults(run_file: type[RunConfig]) -> dict[str, object]:
    """Default of each field, by path."""
    return {item.path: item.info.get_default(call_default_factory=True) for item in fields.iter_fields(run_file)}


def leaves(value: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Flatten to values by dotted path. A list without sections is one value (`stop: [a, b]`), as a reader sees it."""
    found: dict[str, Json] = {}
    for key, item in value.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        sections = [entry for entry in item if isinstance(entry, dict)] if isinstance(item, list) else []
        if isinstance(item, list) and item and len(sections) == len(item):
            for number, entry in enumerate(sections):
                found |= leaves(entry, f"{path}.{number}")
        elif isinstance(item, dict) and item:
            found |= leaves(item, path)
        else:
            found[path] = item
    return found


def script_json(value: object) -> str:
    """Write JSON that is safe inside a <script> element: no character in it can end the element or start markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":  # the last two end a line in older JavaScript
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def score_histogram(run_dir: Path) -> list[ChartData]:
    """The chart of held-out scores, which the run of a reward model writes; empty for other runs."""
    text = _optional_text(run_dir / HISTOGRAM_FILE)
    return [] if text is None else [histogram_chart(json.loads(text))]


def _write(path: Path, title: str, pages: Sequence[RunPage], charts: Sequence[ChartData]) -> Path:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    text = environment.from_string(_asset("page.html")).render(
        title=title,
        style=_asset("page.css"),
        script=_asset("page.js"),
        pages=pages,
        table=configuration_table(pages),
        charts=script_json(charts),
        rollouts=script_json(_rollouts(pages)),
        notes=[page.samples["note"] for page in pages if page.samples["note"]]
        + [page.thinned for page in pages if page.thinned],
    )
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise BurnishError(f"cannot write {path}: {error.strerror}", remedy=disk_remedy(error, path.parent)) from error
    return path


def _rollouts(pages: Sequence[RunPage]) -> dict[str, object]:
    return {"runs": [page.name for page in pages], "files": [page.samples["files"] for page in pages]}


def _resolved(config: str | None) -> dict[str, Json] | None:
    data = None if config is None else parse_yaml(config).data
    return data if isinstance(data, dict) else None


def _value_charts(run_dir: Path, rows: Sequence[Mapping[str, float]]) -> list[ChartData]:
    """The charts of the critic's values; empty for a run without a critic, without reading its rollouts."""
    return value_charts(run_dir / "rollouts") if any("critic/value_mean" in row for row in rows) else []


def _asset(name: str) -> str:
    return files("burnish.report").joinpath("page", name).read_text(encoding="utf-8")


def _masked_text(path: Path) -> str | None:
    """Read a text with its secrets masked, because the page may be passed on."""
    text = _optional_text(path)
    return None if text is None else masked_yaml(text)


def _optional_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
