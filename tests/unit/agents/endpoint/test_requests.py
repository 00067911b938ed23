"""What is read from a request, and what is refused with which field."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from burnish.agents.endpoint.answer_constraints import Demands
from burnish.agents.endpoint.requests import Terms, read_chat, read_completion, read_reward, read_tokens
from burnish.agents.endpoint.responses import read_response
from burnish.outside.listening import RefusedError
from burnish.rollouts.engine import Sampling
from burnish.types import Message

RUN = Sampling(max_response_tokens=8, temperature=0.7, top_p=0.9)
TERMS = Terms(RUN, "tiny", 64)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "hi"}
RESPONSE = {"model": "tiny", "input": "hi"}
TOKENS = {"token_ids": [1]}
USER = {"role": "user", "content": "a"}
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
INPUT_IMAGE = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}


def schema(**content: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": content}}


def function_of(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


SCHEMA = schema(properties={"x": {"type": "integer"}}, required=["x"])
TOOLS = [function_of("calc")]


@pytest.mark.parametrize(
    ("read", "base", "param", "values"),
    [
        (read_chat, CHAT, "model", ["gpt-4"]),
        (read_chat, CHAT, "messages", [[], [IMAGE], [USER, {"role": "assistant", "content": "b"}]]),
        (read_chat, CHAT, "messages", [[{"role": "tool", "tool_call_id": ["a"], "content": "4"}]]),
        (read_chat, CHAT, "temperature", [1.0, float("nan")]),
        (read_chat, CHAT, "top_k", [5]),
        (read_chat, CHAT, "n", [0, 1_000, True]),
        (read_chat, CHAT, "seed", [1]),
        (read_chat, CHAT, "presence_penalty", [0.1]),
        (read_chat, CHAT, "response_format", ["json", {"type": "json_schema"}, schema(type="strange")]),
        (read_chat, CHAT, "tool_choice", ["required", 1]),  # of no tools
        (read_chat, {**CHAT, "tools": TOOLS}, "tool_choice", [function_of("other"), {"type": "allowed_tools"}]),
        (read_chat, CHAT, "chat_template_kwargs", [{"enable_thinking": False}, []]),
        (read_chat, CHAT, "stream_options", [True]),
        (read_chat, CHAT, "logit_bias", [{"5": 1}]),
        (read_chat, CHAT, "stop_token_ids", [[-1], [1] * 257]),
        (read_chat, CHAT, "top_logprobs", [3]),
        (read_chat, CHAT, "logprobs", [1]),
        (read_chat, CHAT, "max_tokens", [0]),
        (read_chat, CHAT, "stop", [[""]]),
        (read_chat, CHAT, "stream", ["yes"]),
        (read_chat, CHAT, "tools", [[{"type": "web_search"}]]),
        (read_chat, CHAT, "guided_json", [{}]),
        (read_chat, CHAT, "parallel_tool_calls", ["no"]),
        (read_chat, CHAT, "sampling_params", [{"temperature": 0.7}]),
        (read_response, RESPONSE, "previous_response_id", ["resp-1"]),
        (read_response, RESPONSE, "background", [True]),
        (read_response, RESPONSE, "max_tokens", [5]),
        (read_response, RESPONSE, "truncation", ["auto"]),
        (read_response, RESPONSE, "input", [[], 5, [{"type": "image_generation_call"}], [INPUT_IMAGE]]),
        (read_response, RESPONSE, "tools", [[{"type": "web_search"}]]),
        (read_response, RESPONSE, "include", [["file_search_call.results"]]),
        (read_response, RESPONSE, "text", ["json"]),
        (read_response, RESPONSE, "n", [2]),
        (read_response, RESPONSE, "unheard_of", [1]),
        (read_response, RESPONSE, "temperature", [0.1]),
        (read_completion, TEXT, "prompt", ["", [1, True]]),
        (read_completion, TEXT, "echo", [True]),
        (read_completion, TEXT, "logprobs", [5]),
        (read_completion, TEXT, "tools", [[]]),
        (read_tokens, TOKENS, "token_ids", ["hi"]),
        (read_tokens, TOKENS, "sampling_params", [[]]),
        (read_tokens, TOKENS, "features", [{}]),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(
    read: Callable[..., Any], base: dict[str, Any], param: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(RefusedError) as caught:
            read({**base, param: value}, TERMS)
        assert (caught.value.status, caught.value.param) == (404 if param == "model" else 400, param)


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0},
        {"n": 3, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {"5": 0}, "seed": None},
        {"reasoning_effort": "none", "chat_template_kwargs": {}, "store": True, "metadata": {"a": "b"}, "stop": []},
        {"service_tier": "auto", "verbosity": "medium", "top_logprobs": 0, "functions": [], "min_p": 0.0},
        {"response_format": {"type": "text"}, "tool_choice": "auto", "parallel_tool_calls": True, "user": "me"},
        {"response_format": {"type": "json_object"}, "tool_choice": "required", "tools": TOOLS},
        {"parallel_tool_calls": False, "tool_choice": "none"},
        {"max_completion_tokens": 4, "stop": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}},
    ],
)
def test_what_asks_for_the_runs_own_settings_is_answered(more: dict[str, Any]) -> None:
    wish = read_chat({**CHAT, **more}, TERMS).wish
    assert (wish.ignored, wish.chosen) == ((), {})


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
        {"n": 0},
        {"top_logprobs": 2},
        {"größe": 1},
        {"a\r\nb": 1},
        {"temperature": 1e-300},
    ],
)
def test_what_is_refused_under_every_rule(more: dict[str, Any], rule: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        read_chat({**CHAT, **more}, Terms(RUN, "tiny", 64, rule))
    assert caught.value.status == 400


def test_demands_are_ignored_if_that_is_the_rule() -> None:
    """`none` is none: it can be kept."""
    terms = Terms(RUN, "tiny", 64, "ignore")
    asked = {**CHAT, "tools": TOOLS, "parallel_tool_calls": False, "response_format": {"type": "json_object"}}
    wish = read_chat({**asked, "tool_choice": "required"}, terms).wish
    assert (wish.ignored, wish.demands) == (("parallel_tool_calls", "response_format", "tool_choice"), Demands())
    assert not read_chat({**asked, "tool_choice": "none"}, terms).wish.demands.calls


@pytest.mark.parametrize(
    ("rule", "asked", "options", "ignored"),
    [
        ("follow", {"chat_template_kwargs": {"thinks": False}}, {"thinks": False}, ()),
        ("follow", {"chat_template_kwargs": {"thinks": True}, "reasoning_effort": "low"}, {}, ("reasoning_effort",)),
        ("ignore", {"chat_template_kwargs": {"thinks": False}}, {}, ("chat_template_kwargs",)),
        ("refuse", {"chat_template_kwargs": {"thinks": True}, "reasoning_effort": "high"}, {}, ("reasoning_effort",)),
        ("refuse", {"chat_template_kwargs": {"thinks": False}}, None, ()),
        ("follow", {"chat_template_kwargs": {"unheard_of": 1}}, None, ()),
    ],
)
def test_options_of_the_template_are_settings_like_others(rule: Any, asked: Any, options: Any, ignored: Any) -> None:
    terms = Terms(RUN, "tiny", 64, rule, {"thinks": True}, {"thinks"})
    if options is None:
        with pytest.raises(RefusedError) as caught:
            read_chat({**CHAT, **asked}, terms)
        assert caught.value.param == "chat_template_kwargs"
        return
    found = read_chat({**CHAT, **asked}, terms)
    assert (found.options, found.wish.ignored) == (options, ignored)


def test_effort_is_an_option_where_the_template_reads_it() -> None:
    terms = Terms(RUN, "tiny", 64, "follow", {}, {"reasoning_effort"})
    assert read_chat({**CHAT, "reasoning_effort": "low"}, terms).options == {"reasoning_effort": "low"}
    with pytest.raises(RefusedError, match="reasoning_effort 'low' would change what this run samples"):
        read_chat({**CHAT, "reasoning_effort": "low"}, replace(terms, others="refuse"))


@pytest.mark.parametrize(
    ("read", "asked"),
    [
        (read_chat, {**CHAT, "messages": [{"role": "user", "content": ""}] * 65}),
        (read_chat, {**CHAT, "messages": [{"role": "user", "content": "a" * 4_097}]}),
        (read_chat, {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 600}]}),
        (read_chat, {**CHAT, "tools": [{"type": "function", "function": {"name": "a", "description": "b" * 4_097}}]}),
        (read_completion, {**TEXT, "prompt": "a" * 4_097}),
        (read_completion, {**TEXT, "prompt": [1] * 65}),
        (read_tokens, {"token_ids": [1] * 65}),
        (read_response, {"model": "tiny", "input": [{"role": "user", "content": "a"}] * 65}),
    ],
)
def test_what_cannot_fit_is_refused_unread(read: Callable[..., Any], asked: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        read(asked, TERMS)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("asked", "content", "calls", "field"),
    [
        ({"tool_choice": "required"}, "4", 0, "tool_choice"),
        ({"tool_choice": "required"}, "", 1, None),
        ({"tool_choice": function_of("calc")}, "", 1, None),
        ({"tool_choice": function_of("find")}, "", 1, "tool_choice"),
        ({"parallel_tool_calls": False}, "", 1, None),
        ({"parallel_tool_calls": False}, "", 2, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}', 0, None),
        ({"response_format": {"type": "json_object"}}, "[1]", 0, "response_format"),
        ({"response_format": {"type": "json_object"}}, 'Sure: {"a": 1}', 0, "response_format"),
        ({"response_format": {"type": "json_object"}}, '{"a": NaN}', 0, "response_format"),
        ({"response_format": {"type": "json_object"}}, "[" * 100_000, 0, "response_format"),
        ({"response_format": {"type": "json_object"}}, "", 1, None),
        ({"response_format": SCHEMA}, '{"x": 1}', 0, None),
        ({"response_format": SCHEMA}, '{"x": "</think>"}', 0, "response_format"),
        ({"response_format": SCHEMA}, "{}", 0, "response_format"),
    ],
)
def test_an_answer_that_is_not_what_was_demanded_is_refused(asked: Any, content: str, calls: int, field: Any) -> None:
    demands = read_chat({**CHAT, "tools": [*TOOLS, function_of("find")], **asked}, TERMS).wish.demands
    call: Any = {"id": "1", "function": {"name": "calc", "arguments": {}}}
    message = Message("assistant", content, tool_calls=(call,) * calls)
    if field is None:
        demands.check(message)
        return
    with pytest.raises(RefusedError) as caught:
        demands.check(message)
    assert (caught.value.status, caught.value.param) == (422, field)


FLAT = {"name": "calc", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function", "function": {"name": "calc", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("asked", "chat"),
    [
        ({"instructions": "be kind"}, {"messages": [{"role": "system", "content": "be kind"}, *CHAT["messages"]]}),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, {}),
        (
            {
                "input": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I see"}]},
                    *({"type": "function_call", "call_id": name, "name": "calc", "arguments": "{}"} for name in "ab"),
                    *({"type": "function_call_output", "call_id": name, "output": "4"} for name in "ab"),
                ]
            },
            {
                "messages": [
                    {"role": "assistant", "content": "I see", "tool_calls": [{"id": name, **CALL} for name in "ab"]},
                    *({"role": "tool", "tool_call_id": name, "content": "4"} for name in "ab"),
                ]
            },
        ),
        ({"tools": [{"type": "function", **FLAT}]}, {"tools": [{"type": "function", "function": FLAT}]}),
        (
            {"tools": [{"type": "function", "name": "calc"}], "tool_choice": {"type": "function", "name": "calc"}},
            {"tools": TOOLS, "tool_choice": TOOLS[0]},
        ),
        ({"max_output_tokens": 5, "stream": True}, {"max_tokens": 5, "stream": True}),
        ({"text": {"format": {"type": "json_schema", **SCHEMA["json_schema"]}}}, {"response_format": SCHEMA}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"store": True, "reasoning": {"effort": "none", "summary": "auto"}, "truncation": "disabled"}, {}),
    ],
)
def test_a_response_is_a_chat(asked: dict[str, Any], chat: dict[str, Any]) -> None:
    found, expected = read_response({**RESPONSE, **asked}, TERMS), read_chat({**CHAT, **chat}, TERMS)
    assert (found.messages, found.tools) == (expected.messages, expected.tools)
    assert replace(found.wish.demands, schema=None) == replace(expected.wish.demands, schema=None)
    assert replace(found.wish, demands=Demands()) == replace(expected.wish, demands=Demands())


def test_temperature_0_is_what_a_greedy_run_has() -> None:
    terms = Terms(Sampling(max_response_tokens=8, greedy=True), "tiny", 64)
    assert read_chat({**CHAT, "temperature": 0}, terms).wish.ignored == ()
    with pytest.raises(RefusedError, match="temperature is 0 in this run"):
        read_chat({**CHAT, "temperature": 1}, terms)


def test_the_shorter_of_two_limits_counts() -> None:
    assert read_chat({**CHAT, "max_tokens": 5, "max_completion_tokens": 3}, TERMS).wish.max_tokens == 3


def test_tokens_are_asked_for_as_renderers_do() -> None:
    sampling = {"max_tokens": 5, "stop_token_ids": [2], "logprobs": 1, "skip_special_tokens": False, "temperature": 0.7}
    found = read_tokens({"model": "tiny", "token_ids": [4, 5], "sampling_params": sampling}, TERMS)
    assert found.tokens == (4, 5)
    assert (found.wish.max_tokens, found.wish.stop_token_ids) == (5, (2,))
    for refused in ({"temperature": 0.1}, {"stop": "x"}):
        with pytest.raises(RefusedError) as caught:
            read_tokens({**TOKENS, "sampling_params": refused}, TERMS)
        assert [caught.value.param] == list(refused)


@pytest.mark.parametrize("value", [None, "1", True, float("inf"), float("nan"), 10**400, [1]])
def test_a_reward_is_a_finite_number(value: Any) -> None:
    with pytest.raises(RefusedError):
        read_reward({"reward": value})
    assert read_reward({"reward": 2}).reward == 2.0
