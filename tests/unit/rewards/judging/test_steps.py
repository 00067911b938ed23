"""Scores of steps land on the last token of each step, and sum to the reward."""

import dataclasses
import json
from typing import Any

import pytest
from stub_judge import judge_at

from burnish.rewards.judging.forms import last_tokens, split_steps
from burnish.types import RewardStatus, Turn


class Pieces:
    """A tokenizer whose tokens are these bytes, and whose special tokens are none."""

    all_special_tokens = ("<end>",)

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize(
    ("response", "steps"),
    [("a\n\nbb\n \n\nc", ["a", "bb", "c"]), ("\n\na\n\n", ["a"]), ("a\nb", ["a\nb"]), ("", [""]), ("\n\n", ["\n\n"])],
)
def test_steps_are_parts_between_blank_lines(response: str, steps: list[str]) -> None:
    assert [response[start:end] for start, end in split_steps(response, r"\n\s*\n", 9)] == steps


@pytest.mark.parametrize(
    ("most", "steps"), [(3, ["a", "b", "c\n\n \n\nd"]), (1, ["a\n\nb\n\nc\n\n \n\nd"]), (4, list("abcd"))]
)
def test_the_last_of_too_many_steps_is_all_the_rest(most: int, steps: list[str]) -> None:
    response = "a\n\nb\n\nc\n\n \n\nd\n\n"
    assert [response[start:end] for start, end in split_steps(response, "\n\n", most)] == steps


def test_the_last_token_of_each_step() -> None:
    # "ab\n\ncé\n\nd" in tokens: "a", "b\n", "\nc", half of é, the other half, "\n\nd"
    tokenizer: Any = Pieces(b"a", b"b\n", b"\nc", b"\xc3", b"\xa9", b"\n\nd")
    text = tokenizer.decode(list(range(6)), skip_special_tokens=False)
    ends = [end for _, end in split_steps(text, r"\n\s*\n", 9)]
    assert ends == [2, 6, 9]
    assert last_tokens(range(6), ends, tokenizer) == [1, 4, 5]


def rule(messages: Any) -> str:
    """1 for each step with a digit, 0 for the others."""
    steps = messages[1]["content"].split("[step ")[1:]
    return json.dumps({"scores": [int(any(c.isdigit() for c in step.splitlines()[1])) for step in steps]})


@pytest.fixture
def judge(stub_judge: Any) -> dict[str, Any]:
    return judge_at(stub_judge(rule), form="steps", scale=[0, 1])


@pytest.mark.slow
def test_token_rewards_sum_to_the_mean_of_the_steps(judge, make_scorer, make_items) -> None:
    texts = ["one 1", "\n\n", "two", "\n\n", "three 3", "<end>"]
    tokenizer = Pieces(*[text.encode() for text in texts])
    scorer = make_scorer(judge)
    scorer.attach_policy(tokenizer)
    prompt, rollout = make_items(["".join(texts[:5])])[0]
    rollout = dataclasses.replace(rollout, response_tokens=tuple(range(6)), rollout_logprobs=(0.0,) * 6)
    (scored,) = scorer.score([(prompt, rollout)])
    assert scored.reward == pytest.approx(2 / 3)
    assert scored.token_rewards == pytest.approx((1 / 3, 0, 0, 0, 1 / 3, 0))
    assert sum(scored.token_rewards) == scored.reward


def test_steps_of_a_conversation_are_those_of_its_last_turn(judge, make_scorer, make_items) -> None:
    texts = ["call 2", "it is 3", "one 1", "\n\n", "two"]
    scorer = make_scorer(judge)
    scorer.attach_policy(Pieces(*[text.encode() for text in texts]))
    prompt, rollout = make_items(["".join(texts[2:])])[0]
    turns = (Turn("policy", 0, 1), Turn("tool", 1, 2), Turn("policy", 2, 5))
    rollout = dataclasses.replace(rollout, response_tokens=tuple(range(5)), rollout_logprobs=(0.0,) * 5, turns=turns)
    (scored,) = scorer.score([(prompt, rollout)])
    assert scored.token_rewards == pytest.approx((0, 0, 0.5, 0, 0))


def test_without_a_tokenizer_there_is_a_value_only(judge, make_scorer, make_items) -> None:
    (scored,) = make_scorer(judge).score(make_items(["a 1\n\nb"]))
    assert (scored.reward, scored.token_rewards) == (0.5, None)


def test_a_response_without_tokens_has_no_score(judge, make_scorer, make_items) -> None:
    scorer = make_scorer(judge)
    scorer.attach_policy(Pieces())
    assert scorer.score(make_items([""]))[0].status is RewardStatus.ERROR


def test_a_list_of_another_length_is_no_verdict(stub_judge, make_scorer, make_items) -> None:
    judge = judge_at(stub_judge(lambda messages: '{"scores": [1, 1]}'), form="steps", scale=[0, 1])
    scored = make_scorer(judge).score(make_items(["a", "a\n\nb"]))
    assert [r.reward for r in scored] == [None, 1.0]
    assert "not a list of 1 scores" in scored[0].status_detail
