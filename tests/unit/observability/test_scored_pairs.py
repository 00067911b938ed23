"""Pairs from the scored groups of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import DataError
from burnish.observability.scored_pairs import PairRule, described, pairs_of_run


def line(prompt: str, response: str, reward: float | None, **more: Any) -> dict[str, Any]:
    found = {"step": 3, "prompt_id": prompt, "group_id": 0, "prompt": f"{prompt}?", "domain": "", "response": response}
    return found | {"reward": reward, "reward_parts": {"math": reward, "brief": 1.0}} | more


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [
        *(line("a", text, score, answer="7") for text, score in (("x", 0.5), ("y", 1.0), ("z", 0.0), ("w", 1.0))),
        line("a", "greedy", 9.0, greedy=True),
        *(line("b", text, 1.0) for text in "xy"),
        *(line("c", text, score) for text, score in (("x", None), ("y", 1.0))),
        line("d", "x", 1.0, turns=[{"author": "policy"}]),
    ]
    (tmp_path / "rollouts").mkdir()
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (tmp_path / "rollouts" / "step-000003.jsonl").write_text(text)
    return tmp_path


def test_the_best_and_the_worst_of_a_group_are_a_pair(run: Path) -> None:
    found = pairs_of_run(run, PairRule())
    assert found.rows == [{"prompt": "a?", "chosen": "y", "rejected": "z", "margin": 1.0, "id": "3:a", "answer": "7"}]
    assert set(described(found)) == {
        "pairs: 1",
        "groups without a pair, no two that differ enough: 1",
        "groups without a pair, fewer than two scored responses: 1",
        "groups without a pair, responses of several turns: 1",
    }


def test_all_pairs_above_a_margin(run: Path) -> None:
    found = pairs_of_run(run, PairRule("all", margin=0.4))
    pairs = [row["chosen"] + row["rejected"] for row in found.rows]
    assert pairs == ["yx", "yz", "wx", "wz", "xz"]
    assert len(pairs_of_run(run, PairRule("all", margin=0.5)).rows) == 2


def test_what_is_not_there_is_named(run: Path) -> None:
    with pytest.raises(DataError, match=r"no reward 'maths'\n.*rewards are brief, math"):
        pairs_of_run(run, PairRule(label="maths"))
    with pytest.raises(DataError, match=r"no rollouts of such steps\n.*3 to 3"):
        pairs_of_run(run, PairRule(), range(10, 20))
