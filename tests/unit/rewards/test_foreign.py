"""Rewards in the forms of TRL, verl and OpenRLHF run unchanged."""

from pathlib import Path
from typing import Any

import pytest

from burnish.errors import RewardError
from burnish.types import Message, Prompt, Rollout

REWARDS = """
def trl(completions, prompts, solution, scale=1.0, **kwargs):
    assert kwargs["completion_ids"]
    return [scale * (text == wanted) for text, wanted in zip(completions, solution)]

def trl_chat(prompts, completions, **kwargs):
    return [float(said[0]["content"] == asked[-1]["content"]) for said, asked in zip(completions, prompts)]

async def trl_async(completions, **kwargs):
    return [None if text == "7" else len(text) for text in completions]

def verl(data_source, solution_str, ground_truth, extra_info=None):
    score = float(solution_str == ground_truth)
    return {"score": score, "acc": bool(score), "pred": solution_str, "hard": extra_info["hard"]}

def openrlhf(queries, prompts, labels):
    return {"rewards": [query == prompt + label for query, prompt, label in zip(queries, prompts, labels)]}

def without_score(data_source, solution_str, ground_truth):
    return {"acc": 1.0}
"""


@pytest.fixture
def items(make_items: Any) -> list[tuple[Prompt, Rollout]]:
    columns = {"solution": "7", "data_source": "sums", "extra_info": {"hard": 0.5}}
    prompt = Prompt("p", text="3+4=", answer="7", columns=columns)
    return [(prompt, rollout) for _, rollout in make_items(["7", "8"])]


@pytest.mark.parametrize(
    ("name", "system", "rewards"),
    [
        ("trl", "TRL", [1, 0]),
        ("trl_async", "TRL", [None, 1]),
        ("verl", "verl", [1, 0]),
        ("openrlhf", "OpenRLHF", [1, 0]),
    ],
)
def test_is_called_as_in_its_own_system(file, items, name, system, rewards, make_scorer) -> None:
    lines: list[str] = []
    assert [r.reward for r in make_scorer(f"{file}:{name}", say=lines.append).score(items)] == rewards
    assert lines == [f"reward '{name}' is called as in {system}, whose parameters it has"]
    if system == "verl":
        make_scorer(f"{file}:verl", say=lines.append).check_prompts([Prompt("p", text="3+4=", answer="7")])
        assert lines[-1] == "reward 'verl' gets the domain as data_source where a row has no such column"


def test_further_parameters_are_options(file: Path, items, make_scorer) -> None:
    scorer = make_scorer({"name": f"{file}:trl", "options": {"scale": 3.0}})
    assert [r.reward for r in scorer.score(items)] == [3, 0]
    assert scorer.answer_labels == ("trl",)  # its column is compared with, so gold answers can be checked


def test_numbers_of_a_dictionary_are_parts(file: Path, items, make_scorer) -> None:
    assert make_scorer(f"{file}:verl").score(items)[0].reward_parts == {"verl": 1.0, "verl/acc": 1.0, "verl/hard": 0.5}


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": [{"role": "user", "content": "7"}]},
        {"messages": [{"role": "user", "content": "7"}], "level": 3},
        {"conversations": '[{"from": "human", "value": "7"}]'},
    ],
)
def test_conversations_come_as_messages(file: Path, make_items, make_scorer, columns: dict) -> None:
    prompt = Prompt("p", messages=(Message("user", "7"),), columns=columns)
    items = [(prompt, rollout) for _, rollout in make_items(["7", "8"])]
    assert [r.reward for r in make_scorer(f"{file}:trl_chat").score(items)] == [1, 0]


def test_a_dictionary_without_a_score_is_refused(file: Path, items, make_scorer) -> None:
    with pytest.raises(RewardError, match="without 'score'"):
        make_scorer(f"{file}:without_score").score(items)
