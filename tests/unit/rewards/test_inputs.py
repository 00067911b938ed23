"""What a reward may ask for, and how a call's arguments are put together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.errors import RewardError
from burnish.rewards.inputs import Item, read_signature
from burnish.types import FinishReason, Message, Prompt, Rollout, Turn


def _rollout(response: str, finish: FinishReason = FinishReason.STOP) -> Rollout:
    return Rollout("p", 3, 1, (9,), (4, 5, 6), (0.0, 0.0, 0.0), finish, 0, response)


TEXT = (Prompt(id="p", text="1+1?", answer="2", domain="sums", columns={"level": 4, "answer": "two"}), _rollout("2"))
CHAT = (
    Prompt(id="q", messages=(Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?"))),
    _rollout("hm", FinishReason.LENGTH),
)


def arguments(reward: Callable[..., float], item: Item, *options: str) -> dict[str, Any]:
    """What this reward is called with for this response."""
    return read_signature(reward, "reward", options).arguments(item)


def test_row_values_and_columns_by_name() -> None:
    given = arguments(lambda response, answer, prompt, domain, num_tokens, level, shade=5: 0.0, TEXT)
    assert given == {"response": "2", "answer": "2", "prompt": "1+1?", "domain": "sums", "num_tokens": 3, "level": 4}


def test_conversations() -> None:
    given = arguments(lambda prompt, messages, finish_reason, truncated, response_tokens: 0.0, CHAT)
    assert given["prompt"] == "Hi"
    assert given["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (given["finish_reason"], given["truncated"], given["response_tokens"]) == ("length", True, [4, 5, 6])
    assert arguments(lambda messages: 0.0, TEXT)["messages"] == [{"role": "user", "content": "1+1?"}]


def test_conversations_of_several_turns() -> None:
    call = Message("assistant", "", tool_calls=({"type": "function", "function": {"name": "add", "arguments": {}}},))
    turns = (
        Turn("policy", 0, 1, (call,), reward=0.5),
        Turn("tool", 1, 2, (Message("tool", "4"),)),
        Turn("policy", 2, 3, (Message("assistant", "It is 4."),)),
    )
    prompt, rollout = TEXT[0], replace(_rollout("It is 4."), turns=turns, environment_reward=2.0)
    given = arguments(lambda turns, transcript, environment_reward, num_tokens, messages: 0.0, (prompt, rollout))
    assert given["turns"] == [turn.to_dict() for turn in turns]
    assert [message["role"] for message in given["transcript"]] == ["user", "assistant", "tool", "assistant"]
    assert given["transcript"][1]["tool_calls"] == [dict(call.tool_calls[0])]
    assert given["messages"] == given["transcript"][:1]
    assert (given["environment_reward"], given["num_tokens"]) == (2.0, 2)
    rollout = replace(rollout, history=(Message("assistant", "Hm."), Message("user", "Yes?")))
    given = arguments(lambda transcript: 0.0, (prompt, rollout))
    assert [message["content"] for message in given["transcript"]] == ["1+1?", "Hm.", "Yes?", "", "4", "It is 4."]
    batched = read_signature(lambda responses, transcripts, turns, environment_rewards: [], "reward", ())
    single = batched.batch_arguments([TEXT, (prompt, rollout)])
    assert single["transcripts"][0] == [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    assert (single["turns"][0], single["environment_rewards"]) == ([], [None, 2.0])


def test_all_columns_never_repeat_what_was_asked_for_or_set() -> None:
    given = arguments(lambda response, answer, level, **columns: 0.0, TEXT, "level")
    assert given == {"response": "2", "answer": "2"}
    assert arguments(lambda response, **columns: 0.0, TEXT) == {"response": "2", "level": 4, "answer": "two"}


def test_batched_takes_plural_or_singular_names_as_lists() -> None:
    signature = read_signature(lambda responses, answers, domain, **columns: [], "reward", ())
    assert signature.batched
    given = signature.batch_arguments([TEXT, CHAT])
    assert (given["responses"], given["answers"]) == (["2", "hm"], ["2", None])
    assert (given["domain"], given["level"]) == (["sums", "default"], [4, None])


def test_signatures_that_cannot_be_called_by_name() -> None:
    for reward in (lambda response, /: 0.0, lambda *responses: 0.0):
        with pytest.raises(RewardError, match="positional parameter"):
            read_signature(reward, "reward", ())
