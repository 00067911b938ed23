"""One self-contained HTML page about a run: curves, alarms, configuration and the rollouts themselves.

The page loads nothing from anywhere; text of prompts and responses reaches it as data and is never read as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from burnish.config.secrets import masked_yaml
from burnish.errors import BurnishError, DataError
from burnish.observability.alarms import replay
from burnish.observability.atomic import disk_remedy, write_text_atomically
from burnish.observability.charts import build_charts, headline, histogram_chart
from burnish.observability.history import read_rows
from burnish.observability.rollout_samples import Limits, sample_rollouts
from burnish.observability.sinks import METRICS_FILE
from burnish.observability.value_plot import value_charts

HISTOGRAM_FILE = "score_histogram.json"


def write_report(run_dir: Path, out: Path | None = None, *, limits: Limits | None = None) -> Path:
    """Write the page (default: `report.html` in the run folder) and return its path.

    `limits` bounds the page's size: steps and prompts beyond it are sampled evenly, and the page says so. Raises
    DataError when the folder holds no run, BurnishError when the page cannot be written.
    """
    rows = read_rows(run_dir / METRICS_FILE)
    if not rows:
        raise DataError(
            f"{run_dir} has no {METRICS_FILE} with at least one step",
            remedy="give the folder of a run (its `output`)",
        )
    samples = sample_rollouts(run_dir / "rollouts", limits or Limits())
    path = out if out is not None else run_dir / "report.html"
    try:
        write_text_atomically(path, _render(run_dir, rows, samples))
    except OSError as error:
        raise BurnishError(f"cannot write {path}: {error.strerror}", remedy=disk_remedy(error, path.parent)) from error
    return path


def _render(run_dir: Path, rows: Sequence[Mapping[str, Any]], samples: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_asset("page.html"))
    return template.render(
        name=run_dir.resolve().name,
        style=_asset("page.css"),
        script=_asset("page.js"),
        tiles=headline(rows),
        alarms=replay(rows),
        config=_masked_text(run_dir / "config.yaml"),
        environment=_masked_text(run_dir / "environment.json"),
        charts=script_json([*build_charts(rows), *_value_charts(run_dir, rows), *score_histogram(run_dir)]),
        rollouts=script_json(samples),
        note=samples["note"],
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a <script> element: no character in it can end the element or start markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _value_charts(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """None for a run without a critic, whose rollouts need not be searched for values."""
    return value_charts(run_dir / "rollouts") if any("critic/value_mean" in row for row in rows) else []


def score_histogram(run_dir: Path) -> list[dict[str, Any]]:
    """The chart of held-out scores that a reward model's run leaves behind; none for other runs."""
    text = _optional_text(run_dir / HISTOGRAM_FILE)
    return [] if text is None else [histogram_chart(json.loads(text))]


def _asset(name: str) -> str:
    return files("burnish.observability").joinpath("report_page", name).read_text(encoding="utf-8")


def _masked_text(path: Path) -> str | None:
    """For readers of a page that may be handed on."""
    text = _optional_text(path)
    return None if text is None else masked_yaml(text)


def _optional_text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
