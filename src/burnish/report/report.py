"""One self-contained HTML page about one or several runs: curves, alarms, configuration, rollouts.

The page loads nothing from the network. The text of prompts and responses is embedded as data and never parsed as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2

from burnish.errors import DataError
from burnish.observability.alarms import Alarm, replay
from burnish.observability.atomic import write_text_atomically, writing
from burnish.observability.history import read_rows
from burnish.observability.sinks import METRICS_FILE
from burnish.report.charts import MAX_POINTS, ChartData, build_charts, headline, histogram_chart, overlay
from burnish.report.configuration import Configuration, configuration_table, masked_text, read_configuration
from burnish.report.rollout_charts import score_charts, value_charts
from burnish.report.samples import PageLimits, Samples, sample_rollouts

HISTOGRAM_FILE = "score_histogram.json"


@dataclass(frozen=True, slots=True)
class RunPage:
    """Contents of the page about one run."""

    name: str
    tiles: list[dict[str, str]]
    alarms: Sequence[Alarm]
    charts: list[ChartData]
    samples: Samples
    configuration: Configuration
    environment: str | None
    thinned: str = ""


def write_report(run_dir: Path, out: Path | None = None, *, limits: PageLimits | None = None) -> Path:
    """Write the page (default: `report.html` in the run folder) and return its path.

    `limits` bounds the size of the page. If there are more steps or prompts, they are sampled evenly, and the page says
    so. Raises DataError if the folder is not a run's, and BurnishError if the page cannot be written.
    """
    page = read_run(run_dir, run_dir.resolve().name, limits or PageLimits())
    return _write(out if out is not None else run_dir / "report.html", page.name, [page], page.charts)


def write_comparison(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write one page with the curves of several runs overlaid, and return its path. Raises like `write_report`."""
    share = PageLimits(total_bytes=PageLimits().total_bytes // len(run_dirs))
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
            f"{run_dir} has no {METRICS_FILE} with at least one step", remedy="give the folder of a run (its `output`)"
        )
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
        configuration=read_configuration(run_dir, name),
        environment=masked_text(run_dir / "environment.json"),
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


def script_json(value: object) -> str:
    """Write JSON that is safe inside a <script> element: no character in it can end the element or start markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":  # the last two end a line in older JavaScript
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def score_histogram(run_dir: Path) -> list[ChartData]:
    """The chart of held-out scores, which the run of a reward model writes; empty for other runs."""
    file = run_dir / HISTOGRAM_FILE
    return [histogram_chart(json.loads(file.read_text(encoding="utf-8")))] if file.exists() else []


def _write(path: Path, title: str, pages: Sequence[RunPage], charts: Sequence[ChartData]) -> Path:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    text = environment.from_string(_asset("page.html")).render(
        title=title,
        style=_asset("page.css"),
        script=_asset("shared.js") + _asset("page.js"),
        pages=pages,
        table=configuration_table([page.configuration for page in pages]),
        charts=script_json(charts),
        rollouts=script_json(_rollouts(pages)),
        notes=[page.samples["note"] for page in pages if page.samples["note"]]
        + [page.thinned for page in pages if page.thinned],
    )
    with writing(path):
        write_text_atomically(path, text)
    return path


def _rollouts(pages: Sequence[RunPage]) -> dict[str, object]:
    return {"runs": [page.name for page in pages], "files": [page.samples["files"] for page in pages]}


def _value_charts(run_dir: Path, rows: Sequence[Mapping[str, float]]) -> list[ChartData]:
    """The charts of the critic's values; empty for a run without a critic, without reading its rollouts."""
    return value_charts(run_dir / "rollouts") if any("critic/value_mean" in row for row in rows) else []


def _asset(name: str) -> str:
    return files("burnish.report").joinpath("page", name).read_text(encoding="utf-8")
