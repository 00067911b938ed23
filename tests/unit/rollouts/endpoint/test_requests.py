"""What is read from a request, and what is refused with which field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from burnish.rollouts.endpoint.requests import (
    RefusedError,
    Terms,
    read_chat,
    read_completion,
    read_reward,
    read_tokens,
)
from burnish.rollouts.engine import Sampling

RUN = Sampling(max_response_tokens=8, temperature=0.7, top_p=0.9)
TERMS = Terms(RUN, "tiny", 64)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": "gpt-4"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"temperature": 1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 5}, "top_k"),
        ({"n": 2}, "n"),
        ({"seed": 1}, "seed"),
        ({"presence_penalty": 0.1}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"guided_json": {}}, "guided_json"),
        ({"messages": [{"role": "tool", "tool_call_id": ["a"], "content": "4"}]}, "messages"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"sampling_params": {"temperature": 0.7}}, "sampling_params"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_chat({**CHAT, **more}, TERMS)
    assert caught.value.param == param
    assert caught.value.status in (400, 404)


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0},
        {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": None, "seed": None},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True, "user": "me"},
        {"max_completion_tokens": 4, "stop": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_what_asks_for_the_runs_own_settings_is_answered(more: dict[str, Any]) -> None:
    wish = read_chat({**CHAT, **more}, TERMS).wish
    assert wish.ignored == ()
    assert wish.chosen == {}


def test_settings_are_ignored_or_followed_if_that_is_the_rule() -> None:
    asked = {**CHAT, "temperature": 0.2, "seed": 3, "unheard_of": {}}
    assert read_chat(asked, Terms(RUN, "tiny", 64, "ignore")).wish.ignored == ("seed", "temperature", "unheard_of")
    del asked["unheard_of"]
    wish = read_chat(asked, Terms(RUN, "tiny", 64, "follow")).wish
    assert (wish.chosen, wish.seed, wish.ignored) == ({"temperature": 0.2}, 3, ())
    with pytest.raises(RefusedError, match="top_p"):  # what the engine would refuse must not reach it
        read_chat({**CHAT, "top_p": 1.5}, Terms(RUN, "tiny", 64, "follow"))
    with pytest.raises(RefusedError, match="there is no unheard_of at this address"):
        read_chat({**CHAT, "unheard_of": {}}, Terms(RUN, "tiny", 64, "follow"))


@pytest.mark.parametrize("rule", ["refuse", "ignore", "follow"])
@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}},
        {"guided_json": {}},
        {"n": 2},
        {"tool_choice": "required"},
        {"größe": 1},
        {"a\r\nb": 1},
        {"temperature": 1e-300},
    ],
)
def test_what_is_refused_under_every_rule(more: dict[str, Any], rule: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        read_chat({**CHAT, **more}, Terms(RUN, "tiny", 64, rule))
    assert caught.value.status == 400


def test_temperature_0_is_what_a_greedy_run_has() -> None:
    terms = Terms(Sampling(max_response_tokens=8, greedy=True), "tiny", 64)
    assert read_chat({**CHAT, "temperature": 0}, terms).wish.ignored == ()
    with pytest.raises(RefusedError, match="temperature is 0 in this run"):
        read_chat({**CHAT, "temperature": 1}, terms)


def test_the_shorter_of_two_limits_counts() -> None:
    assert read_chat({**CHAT, "max_tokens": 5, "max_completion_tokens": 3}, TERMS).wish.max_tokens == 3


@pytest.mark.parametrize(
    ("read", "asked", "param"),
    [
        (read_completion, {**TEXT, "prompt": ""}, "prompt"),
        (read_completion, {**TEXT, "prompt": [1, True]}, "prompt"),
        (read_completion, {**TEXT, "echo": True}, "echo"),
        (read_completion, {**TEXT, "logprobs": 5}, "logprobs"),
        (read_tokens, {"token_ids": "hi"}, "token_ids"),
        (read_tokens, {"token_ids": [1], "sampling_params": []}, "sampling_params"),
        (read_tokens, {"token_ids": [1], "sampling_params": {"temperature": 0.1}}, "temperature"),
        (read_tokens, {"token_ids": [1], "sampling_params": {"stop": "x"}}, "stop"),
        (read_tokens, {"token_ids": [1], "features": {}}, "features"),
        (read_completion, {**TEXT, "tools": []}, "tools"),
    ],
)
def test_texts_and_tokens_are_refused_in_the_same_way(read: Callable[..., Any], asked: Any, param: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read(asked, TERMS)
    assert caught.value.param == param


def test_tokens_are_asked_for_as_renderers_do() -> None:
    sampling = {"max_tokens": 5, "stop_token_ids": [2], "logprobs": 1, "skip_special_tokens": False, "temperature": 0.7}
    found = read_tokens({"model": "tiny", "token_ids": [4, 5], "sampling_params": sampling}, TERMS)
    assert found.tokens == (4, 5)
    assert (found.wish.max_tokens, found.wish.stop_token_ids) == (5, (2,))


@pytest.mark.parametrize("value", [None, "1", True, float("inf"), float("nan"), 10**400, [1]])
def test_a_reward_is_a_finite_number(value: Any) -> None:
    with pytest.raises(RefusedError):
        read_reward({"reward": value})
    assert read_reward({"reward": 2}).reward == 2.0
