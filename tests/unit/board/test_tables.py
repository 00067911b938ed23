"""Metrics as columns, read on from where the last reading ended."""

import json
from pathlib import Path

import pytest
from board_runs import write_rows

from burnish.board.curves import MOST_POINTS, charts_of, points
from burnish.board.tables import MetricTable
from burnish.observability.alarms import replay

ROWS = (
    {"step": 1, "reward/mean": 0.25, "rollout/response_tokens_sum": 10.0, "time/step_seconds": 2.0},
    {"step": 2, "reward/mean": 0.5, "rollout/response_tokens_sum": 20.0, "time/step_seconds": 3.0,
     "eval/accuracy": 0.5},
    {"step": 4, "reward/mean": 1.0, "rollout/response_tokens_sum": 30.0, "time/step_seconds": 1.0,
     "time/evaluate_seconds": 4.0, "eval/accuracy": 0.75},
)  # fmt: skip


def table_of(folder: Path, *rows: dict[str, float]) -> MetricTable:
    write_rows(folder, *rows)
    table = MetricTable(folder / "metrics.jsonl")
    assert table.refresh()
    return table


def test_rows_become_columns_with_tokens_and_seconds_so_far(tmp_path: Path) -> None:
    table = table_of(tmp_path, *ROWS)
    assert [*table.steps] == [1, 2, 4]
    assert [*table.tokens] == [10, 30, 60]
    assert [*table.seconds] == [2, 5, 10]
    accuracy = table.columns["eval/accuracy"]
    assert ([*accuracy.rows], [*accuracy.values]) == ([1, 2], [0.5, 0.75])
    assert not table.refresh()


def append(table: MetricTable, text: str) -> None:
    with table.path.open("a") as file:
        file.write(text)


def test_only_new_lines_are_read_and_a_torn_one_waits_for_its_end(tmp_path: Path) -> None:
    table = table_of(tmp_path, ROWS[0])
    text = json.dumps(ROWS[1]) + "\n"
    append(table, text[:20])
    assert not table.refresh()
    append(table, text[20:])
    assert table.refresh()
    assert ([*table.steps], table.generation) == ([1, 2], 0)


def test_a_resumed_run_that_writes_the_file_anew_is_read_anew(tmp_path: Path) -> None:
    table = table_of(tmp_path, *ROWS)
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps(ROWS[0]) + "\n")
    fresh.replace(table.path)
    assert table.refresh()
    assert ([*table.steps], table.generation) == ([1], 1)
    table.path.unlink()
    assert table.refresh()
    assert (len(table.steps), table.generation) == (0, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"step": 2, "loss": NaN}\n', "metrics.jsonl:2 is not a row of metrics: loss is nan"),
        (f'{{"step": 2, "loss": {10**400}}}\n', "metrics.jsonl:2 is not a row of metrics: int too large"),
        (f'{{"step": {10**30}}}\n', "metrics.jsonl:2 is not a row of metrics"),
        ("no JSON\n", "metrics.jsonl:2 is not a row of metrics"),
        ('{"step": 1}\n', "metrics.jsonl:2 is out of order"),
    ],
)
def test_what_comes_before_a_damaged_line_is_shown_and_the_damage_named(
    tmp_path: Path, text: str, problem: str
) -> None:
    table = table_of(tmp_path, ROWS[0])
    append(table, text + '{"step": 9}\n')
    table.refresh()
    assert [*table.steps] == [1]
    assert table.problem.startswith(problem)


def test_alarms_are_those_of_the_whole_file_however_it_was_read(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": 0.5, "groups/constant_fraction": 1.0} for step in range(1, 41)]
    table = table_of(tmp_path, *rows[:7])
    append(table, "".join(json.dumps(row) + "\n" for row in rows[7:]))
    table.refresh()
    assert table.alarms == replay(rows)
    assert table.alarms


def test_points_by_step_tokens_and_time(tmp_path: Path) -> None:
    table = table_of(tmp_path, *ROWS)
    assert points(table, "eval/accuracy") == {"steps": [2, 4], "x": [2, 4], "y": [0.5, 0.75], "total": 1.25, "count": 3}
    assert points(table, "eval/accuracy", "tokens")["x"] == [30, 60]
    assert points(table, "reward/mean", "time")["x"] == [2, 5, 10]
    assert points(table, "reward/mean", after=1)["steps"] == [2, 4]
    assert points(table, "reward/mean", "time", first=3, last=6)["steps"] == [2]
    assert points(table, "no/such") == {"steps": [], "x": [], "y": [], "total": 0, "count": 3}


@pytest.mark.slow
def test_a_long_line_keeps_its_extremes_and_zooming_in_shows_every_point(tmp_path: Path) -> None:
    table = table_of(tmp_path, *({"step": step, "loss": float(step == 5_000)} for step in range(10_000)))
    whole = points(table, "loss")
    assert len(whole["y"]) <= MOST_POINTS
    assert max(whole["y"]) == 1
    assert points(table, "loss", first=4_900, last=5_100)["steps"] == [*range(4_900, 5_101)]


def test_totals_are_of_all_steps_that_are_shown(tmp_path: Path) -> None:
    """Also of those without a point, but not of the evaluation before the first step."""
    rows = [{"step": step, "time/x_seconds": 2.0 - step % 2} for step in range(2 * MOST_POINTS + 1)]
    whole, later = (points(table_of(tmp_path, *rows), "time/x_seconds", after=after) for after in (-1, 1_000))
    assert (whole["total"], whole["count"]) == (3.0 * MOST_POINTS, 2 * MOST_POINTS)
    assert (later["total"], later["count"]) == (3.0 * MOST_POINTS - 1_500, 2 * MOST_POINTS - 1_000)


def test_the_first_charts_are_what_matters_and_a_curve_is_drawn_once(tmp_path: Path) -> None:
    rows = [
        {"step": step, "reward/mean": float(step), "reward/part/exact": float(step), "reward/max": 1.0,
         "reward/audit/judge": -float(step), "policy/entropy": 1.0 / step, "time/generate_seconds": float(step),
         "my/own": float(step**2)}
        for step in (1, 2, 3)
    ]  # fmt: skip
    found = charts_of([table_of(tmp_path, *rows)])
    main = {chart["title"]: chart for chart in found["charts"] if chart["main"]}
    # The seconds of `generate` happen to be the same curve as the reward, which is drawn first.
    assert [*main] == ["Reward by part", "Entropy"]
    shown = [(line["label"], line["dashed"]) for line in main["Reward by part"]["lines"]]
    assert shown == [("mean = exact", False), ("audit: judge", True)]
    drawn = [line["metric"] for chart in found["charts"] for line in chart["lines"]]
    assert len(drawn) == len(set(drawn))
    assert found["charts"][-1]["title"] == "my/own"
    assert found["flat"] == [{"metric": "reward/max", "value": 1.0}]


def test_a_metric_that_is_flat_in_one_run_only_has_a_chart(tmp_path: Path) -> None:
    one = table_of(tmp_path / "a", {"step": 1, "x/y": 1.0}, {"step": 2, "x/y": 1.0})
    other = table_of(tmp_path / "b", {"step": 1, "x/y": 2.0}, {"step": 2, "x/y": 2.0})
    assert charts_of([one])["charts"] == []
    assert charts_of([one, other])["flat"] == []
