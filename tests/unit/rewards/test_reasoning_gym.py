"""The reward for puzzles of reasoning-gym."""

from typing import Any

import pytest

from burnish.errors import ConfigError
from burnish.types import Score

pytest.importorskip("reasoning_gym", reason="needs burnish[reasoning-gym]")

from burnish.config.schema import RewardConfig
from burnish.rewards import check_gold
from burnish.rewards.builtins.reasoning_gym import ReasoningGym, answer_of
from burnish.rewards.success import full_marks
from burnish.types import Prompt

SUM = {
    "question": "State the final answer to the following arithmetic problem: 1 + 2 =",
    "answer": "3",
    "metadata": {"source_dataset": "chain_sum"},
    "reasoning_gym": {"task": "chain_sum", "parameters": {}},
}


def row(task: str, **item: Any) -> dict[str, Any]:
    return {"question": "?", "metadata": {}, "reasoning_gym": {"task": task, "parameters": {}}, **item}


@pytest.mark.parametrize(
    ("response", "auto", "tags", "everything"),
    [
        (" 3\n", "3", None, "3"),
        ("<think>1 + 2</think> It is <answer> 3 </answer>.", "3", "3", "It is <answer> 3 </answer>."),
        ("<answer>4</answer> no, <answer>3</answer>", "3", "3", "<answer>4</answer> no, <answer>3</answer>"),
        ("1 + 2 is 3</think>3", "3", None, "3"),
        ("<think>1 + 2 is 3", None, None, None),
        ("<think>3</think> ", None, None, None),
        ("<think>1</think>\n<think>3", None, None, None),
        ("The tag is `<think>`", "The tag is `<think>`", None, "The tag is `<think>`"),
        ("<answer>4 <answer>3</answer>", "3", "3", "<answer>4 <answer>3</answer>"),
        ("<answer> </answer>", None, None, "<answer> </answer>"),
    ],
)
def test_where_the_answer_is(response: str, auto: str | None, tags: str | None, everything: str | None) -> None:
    assert [answer_of(response, extract) for extract in ("auto", "tags", "all")] == [auto, tags, everything]


def test_scores_of_the_task() -> None:
    reward = ReasoningGym()
    assert reward("3", **SUM) == Score(1.0, {"raised": 0.0})
    assert reward("4", **SUM) == Score(0.0, {"raised": 0.0})
    assert reward("33", **SUM) == Score(0.5, {"raised": 0.0})  # the share of the answer that is right
    assert reward("3") is None  # a row of another source


def test_an_answer_on_which_the_task_raises_is_counted() -> None:
    factors = row("prime_factorization", answer="2 × 3", metadata={"number": 6, "factors": [2, 3]})
    reward = ReasoningGym()
    assert reward("2 × 3", **factors) == Score(1.0, {"raised": 0.0})
    assert reward("two and three", **factors) == Score(0.0, {"raised": 1.0})


def test_unsound_tasks_are_refused_unless_they_are_allowed() -> None:
    halting = row("game_of_life_halting", answer="True")
    with pytest.raises(ConfigError, match=r"unsound scores: any answer gets 1(?s:.*)allow: \[game_of_life_halting\]"):
        ReasoningGym()("True", **halting)
    assert ReasoningGym(allow=["game_of_life_halting"])("banana", **halting) == Score(1.0, {"raised": 0.0})


def test_misspelt_options() -> None:
    with pytest.raises(ConfigError, match=r"option allow(?s:.*)did you mean 'puzzle24'"):
        ReasoningGym(allow=["puzzel24"])
    with pytest.raises(ConfigError, match=r"allow: \[puzzle24\]"):
        ReasoningGym(allow="puzzle24")


def test_the_gold_check_leaves_out_tasks_without_a_gold_answer(make_scorer) -> None:
    made_by = {"reasoning_gym": {"task": "graph_color", "parameters": {}}}
    prompts = [
        Prompt("a", text="?", answer="3", columns=SUM),
        Prompt("b", text="?", answer=None, columns={"question": "?", "answer": None, "metadata": {}, **made_by}),
    ]
    reward = {"name": "reasoning_gym", "timeout_seconds": 60}
    scorer = make_scorer(reward, columns=SUM)
    report = check_gold(prompts, scorer, judge=full_marks([RewardConfig(**reward)], scorer.answer_labels))
    assert (report.checked, report.failures, report.without_gold) == (1, (), ("b",))
