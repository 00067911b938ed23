"""The table of metrics and the code that makes, decides by and shows metrics."""

import ast
import re
from pathlib import Path

import pytest
from source_trees import SOURCE, parse_folder

from burnish.board import metric_charts as charts
from burnish.observability import console
from burnish.observability.alarms import DETECTORS
from burnish.observability.metric_names import METRICS, explain, find_metric, metrics_page
from burnish.trainers.telemetry.moments import SPREADS

ROWS = [row for section in METRICS.values() for row in section]
GROUPS = "|".join(sorted({row.name.partition("/")[0] for row in ROWS}))
MOMENTS = {square_mean for _, square_mean in SPREADS.values()} | {
    "critic/return_square_mean",
    "critic/residual_mean",
    "critic/residual_square_mean",
    "rollout/weight_square_mean",
}
"""Means of squares and the like, which become spreads before anything is logged."""


def constants(*left_out: str) -> set[str]:
    """All texts in the code, those inside f-strings by their parts, except in these files."""
    found = set()
    for file, tree in parse_folder(SOURCE).items():
        if file.name not in left_out:
            found |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return found


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == metrics_page(), "run `make docs`"


@pytest.mark.slow
def test_every_name_in_the_code_is_in_the_table() -> None:
    """A name with a slip in a chart or an alarm would be a chart or an alarm that never shows."""
    named = {text for text in constants() if re.fullmatch(rf"({GROUPS})/[a-z0-9_@]+(/[a-z0-9_]+)*", text)} - MOMENTS
    families = tuple(row.name for row in ROWS if row.is_family)
    assert len(named) > 100
    assert not [n for n in sorted(named) if find_metric(n) is None and not any(f.startswith(n) for f in families)]


@pytest.mark.slow
def test_every_row_is_made_by_some_code() -> None:
    """By its whole name, or by its last part behind a prefix (`policy/`, `eval/`), or by a form such as
    `reward/{status}_fraction`."""
    made = {text.strip("/") for text in constants("metric_names.py", "metric_charts.py", "console.py", "alarms.py")}
    forms = {"reward/timeout_fraction", "reward/error_fraction", "reward/missing_fraction"}
    forms |= {f"throughput/{phase}_tokens_per_second" for phase in ("response", "generate", "update")}
    forms |= {f"eval/{name}" for name in ("rollout/lost_workers", "rollout/engine_restarts", "conversation/restarts")}
    forms |= {f"tool/{why}_fraction" for why in ("malformed", "invalid", "failed", "timed_out", "cut")}
    assert {"_fraction", "_tokens_per_second", "reward", "throughput", "tool"} <= made
    beginnings = {row.name: row.name.partition("{")[0].rstrip("/") for row in ROWS}
    lost = [n for n, begin in beginnings.items() if not {begin, begin.rpartition("/")[2]} & made and n not in forms]
    assert not lost


def test_what_is_shown_and_decided_by_is_in_the_table() -> None:
    shown = [name for chart in charts.CHARTS for _, name in chart.metrics]
    shown += [name for _, name, _ in console.COLUMNS] + [name for _, name in console.SPEEDS]
    shown += [detector.metric for detector in DETECTORS]
    assert not [name for name in shown if find_metric(name) is None]
    families = [begin for _, _, begin, _ in charts.FAMILIES] + [family[0] for family in console.FAMILIES]
    assert not [begin for begin in families if not any(row.name.startswith(begin) for row in ROWS if row.is_family)]


def test_names_are_unique_and_sentences_whole() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert not [row.name for row in ROWS if not row.meaning.endswith(".") or "|" in row.meaning]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("time/step_seconds", "time/step_seconds"),
        ("time/update_seconds", "time/{phase}_seconds"),
        ("time/reward_worker_seconds/math", "time/reward_worker_seconds/{label}"),
        ("eval/pass@4", "eval/pass@{k}"),
        ("eval/domain/a.b/accuracy", "eval/domain/{domain}/{metric}"),
        ("policy/of_my_own", None),
        ("eval/passx4", None),
    ],
)
def test_a_name_is_found_before_its_family(name: str, row: str | None) -> None:
    found = find_metric(name)
    assert (None if found is None else found.name) == row


def test_an_explanation_has_the_unit() -> None:
    assert explain("kl/target") == "Target of the adaptive coefficient (nats per response)"
    assert explain("of/mine") == ""
