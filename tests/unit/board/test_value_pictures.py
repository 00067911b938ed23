"""The plot of values against returns: which tokens, and the means along it."""

from pathlib import Path
from typing import Any

import pytest
from board_runs import write_step

from burnish.board.pictures import MAX_DOTS, mean_by_value, value_charts


def line(values: list[Any], returns: list[Any], kept: bool = True) -> dict[str, Any]:
    tokens = [0] * len(values)
    return {"kept": kept, "response_tokens": tokens, "token_values": values, "token_returns": returns}


def test_first_tokens_stand_apart_and_what_was_not_trained_on_is_left_out(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [line([9.0], [9.0])])
    write_step(tmp_path, 2, [line([0.5, 1.0], [0.0, 0.25]), line([0.75], [1.0]), line([7.0], [7.0], kept=False)])
    write_step(tmp_path, 2, [{"token_values": [1.0]}], kind="eval")
    (chart,) = value_charts(tmp_path / "rollouts")
    assert (chart["axis"], "step 2" in chart["help"]) == ("value", True)
    later, first, means, right = chart["series"]
    assert (first["x"], first["y"]) == ([0.5, 0.75], [0.0, 1.0])
    assert (later["x"], later["y"]) == ([1.0], [0.25])
    assert (right["mark"], right["x"], right["y"]) == ("dashes", [0.5, 1.0], [0.5, 1.0])
    assert (means["mark"], means["x"], means["y"]) == ("line", [0.5, 0.75, 1.0], [0.0, 1.0, 0.25])


def test_a_step_that_learned_nothing_gives_way_to_the_one_before(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [line([0.5], [1.0])])
    write_step(tmp_path, 2, [{"kept": False}])
    assert "step 1" in value_charts(tmp_path / "rollouts")[0]["help"]
    assert value_charts(tmp_path) == []


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [line([0.5, 0.6], [1.0, "nan"]), line(["inf"], [1.0])])
    assert [one["x"] for one in value_charts(tmp_path / "rollouts")[0]["series"]] == [[0.5]]


def test_means_are_of_tenths_by_value() -> None:
    points = [(float(v), float(v % 2)) for v in (*range(10, 20), *range(10))]
    assert mean_by_value(points) == [(2 * i + 0.5, 0.5) for i in range(10)]
    assert mean_by_value([(0.3, 1.0), (0.3, 0.0)]) == []
    assert mean_by_value([]) == []


def test_a_long_step_is_thinned(tmp_path: Path) -> None:
    write_step(tmp_path, 1, [line([0.0] * 5000, [1.0] * 5000)])
    (later, first) = value_charts(tmp_path / "rollouts")[0]["series"]
    assert (len(later["x"]), len(first["x"])) == (pytest.approx(MAX_DOTS), 1)
