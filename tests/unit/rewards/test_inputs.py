"""What a reward may ask for, and how a call's arguments are put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burnish.errors import ConfigError, RewardError
from burnish.rewards.inputs import check_options, read_signature
from burnish.types import FinishReason, Message, Prompt, Rollout, Turn


def _rollout(response: str, finish: FinishReason = FinishReason.STOP) -> Rollout:
    return Rollout("p", 3, 1, (9,), (4, 5, 6), (0.0, 0.0, 0.0), finish, 0, response)


TEXT = (Prompt(id="p", text="1+1?", answer="2", domain="sums", columns={"level": 4, "answer": "two"}), _rollout("2"))
CHAT = (
    Prompt(id="q", messages=(Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?"))),
    _rollout("hm", FinishReason.LENGTH),
)


def test_row_values_and_columns_by_name() -> None:
    def reward(
        response: str, answer: str, prompt: str, domain: str, num_tokens: int, level: int, shade: int = 5
    ) -> float:
        return 0.0

    given = read_signature(reward, "reward", ()).arguments(TEXT)
    assert given == {"response": "2", "answer": "2", "prompt": "1+1?", "domain": "sums", "num_tokens": 3, "level": 4}


def test_conversations() -> None:
    def reward(prompt: str, messages: list, finish_reason: str, truncated: bool, response_tokens: list) -> float:
        return 0.0

    signature = read_signature(reward, "reward", ())
    given = signature.arguments(CHAT)
    assert given["prompt"] == "Hi"
    assert given["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (given["finish_reason"], given["truncated"], given["response_tokens"]) == ("length", True, [4, 5, 6])
    assert signature.arguments(TEXT)["messages"] == [{"role": "user", "content": "1+1?"}]


def test_conversations_of_several_turns() -> None:
    call = Message("assistant", "", tool_calls=({"type": "function", "function": {"name": "add", "arguments": {}}},))
    turns = (
        Turn("policy", 0, 1, (call,), reward=0.5),
        Turn("tool", 1, 2, (Message("tool", "4"),)),
        Turn("policy", 2, 3, (Message("assistant", "It is 4."),)),
    )
    prompt, rollout = TEXT[0], replace(_rollout("It is 4."), turns=turns, environment_reward=2.0)

    def reward(turns: list, transcript: list, environment_reward: float, num_tokens: int, messages: list) -> float:
        return 0.0

    given = read_signature(reward, "reward", ()).arguments((prompt, rollout))
    assert given["turns"] == [turn.to_dict() for turn in turns]
    assert [message["role"] for message in given["transcript"]] == ["user", "assistant", "tool", "assistant"]
    assert given["transcript"][1]["tool_calls"] == [dict(call.tool_calls[0])]
    assert given["messages"] == given["transcript"][:1]
    assert (given["environment_reward"], given["num_tokens"]) == (2.0, 2)
    rollout = replace(rollout, history=(Message("assistant", "Hm."), Message("user", "Yes?")))
    given = read_signature(reward, "reward", ()).arguments((prompt, rollout))
    assert [message["content"] for message in given["transcript"]] == ["1+1?", "Hm.", "Yes?", "", "4", "It is 4."]

    def batched(responses: list, transcripts: list, turns: list, environment_rewards: list) -> list:
        return []

    single = read_signature(batched, "reward", ()).batch_arguments([TEXT, (prompt, rollout)])
    assert single["transcripts"][0] == [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    assert (single["turns"][0], single["environment_rewards"]) == ([], [None, 2.0])


def test_all_columns_never_repeat_what_was_asked_for_or_set() -> None:
    def reward(response: str, answer: str, level: int, **columns: Any) -> float:
        return 0.0

    assert read_signature(reward, "reward", ("level",)).arguments(TEXT) == {"response": "2", "answer": "2"}

    def everything(response: str, **columns: Any) -> float:
        return 0.0

    assert read_signature(everything, "reward", ()).arguments(TEXT) == {"response": "2", "level": 4, "answer": "two"}


def test_batched_takes_plural_or_singular_names_as_lists() -> None:
    def reward(responses: list, answers: list, domain: list, **columns: Any) -> list:
        return []

    signature = read_signature(reward, "reward", ())
    assert signature.batched
    given = signature.batch_arguments([TEXT, CHAT])
    assert given["responses"] == ["2", "hm"]
    assert given["answers"] == ["2", None]
    assert given["domain"] == ["sums", "default"]
    assert given["level"] == [4, None]


def test_a_parameter_that_nothing_provides() -> None:
    def single(answers: str) -> float:
        return 0.0

    with pytest.raises(RewardError, match="did you mean 'answer'"):
        read_signature(single, "reward", ()).check_columns([])


def test_signatures_that_cannot_be_called_by_name() -> None:
    def positional(response: str, /) -> float:
        return 0.0

    def many(*responses: str) -> float:
        return 0.0

    for reward in (positional, many):
        with pytest.raises(RewardError, match="positional parameter"):
            read_signature(reward, "reward", ())


def test_options_are_named_parameters() -> None:
    def reward(response: str, threshold: float = 0.5, **columns: Any) -> float:
        return 0.0

    check_options(reward, "reward", ["threshold"])
    with pytest.raises(ConfigError, match=r"(?s)no option 'treshold'.*did you mean 'threshold'"):
        check_options(reward, "reward", ["treshold"])
    with pytest.raises(ConfigError, match="no option 'response'"):
        check_options(reward, "reward", ["response"])
