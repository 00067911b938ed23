"""What the best-paid responses look like, by hand."""

from pathlib import Path
from typing import Any

import pytest
from board_runs import write_step

from burnish.board.pictures import extreme_thirds, has_format, repetition, score_charts


def line(reward: float | None, response: str = "x", tokens: int = 1, greedy: bool = False) -> dict[str, Any]:
    return {"reward": reward, "response": response, "response_tokens": [1] * tokens, "greedy": greedy}


def test_repetition_counts_sequences_of_three_words() -> None:
    assert repetition("a b c d") == 0.0
    assert repetition("a b") == 0.0
    assert repetition("a a a a a") == pytest.approx(2 / 3)  # three sequences, all alike


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain words", False), ("2 * 3 = 6", False), ("**bold**", True), ("# Title", True), ("a\n- b", True),
     ("1. first", True), ("\\boxed{3}", True), ("<think>", True), ("x < y > z", False)],
)  # fmt: skip
def test_marks_of_format(text: str, expected: bool) -> None:
    assert has_format(text) is expected


def test_thirds_that_share_a_reward_say_nothing() -> None:
    best, worst = extreme_thirds([line(reward) for reward in (0.0, 0.0, 1.0, 1.0, 2.0, 2.0)])
    assert ([row["reward"] for row in best], [row["reward"] for row in worst]) == ([2.0, 2.0], [0.0, 0.0])
    assert extreme_thirds([line(1.0)] * 6) == ([], [])
    assert extreme_thirds([line(1.0), line(2.0)]) == ([], [])


def test_charts_of_two_steps(tmp_path: Path) -> None:
    """Failed and greedy responses are left out; a step with equal rewards has no point."""
    first = [line(0, "a b c a b c", 6), line(1, "- x", 2), line(0.5)]
    write_step(tmp_path, 1, [*first, line(None, tokens=99), line(9, tokens=99, greedy=True)])
    write_step(tmp_path, 2, [line(1)] * 3)
    charts = {chart["title"]: chart for chart in score_charts(tmp_path / "rollouts")}
    values = {title: [series["y"] for series in chart["series"]] for title, chart in charts.items()}
    assert values == {
        "Length by score": [[2.0], [6.0]],
        "Repetition by score": [[0.0], [0.25]],
        "Format by score": [[1.0], [0.0]],
    }
    assert charts["Length by score"]["series"][0]["x"] == [1]


def test_a_run_without_rollouts_has_no_such_charts(tmp_path: Path) -> None:
    assert score_charts(tmp_path / "rollouts") == []


def test_a_long_text_of_white_space_takes_no_time() -> None:
    assert not has_format("\n" * 200_000)


def test_a_conversation_of_several_rows_counts_once(tmp_path: Path) -> None:
    rows = [line(0, tokens=1), line(1, tokens=3), line(0.5), {**line(0, tokens=50), "ends_in": 1}]
    write_step(tmp_path, 1, rows)
    charts = {chart["title"]: chart for chart in score_charts(tmp_path / "rollouts")}
    assert [series["y"] for series in charts["Length by score"]["series"]] == [[3.0], [1.0]]
