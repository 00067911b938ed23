"""The official client of OpenAI against the endpoint over HTTP."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ..conftest import CALCULATOR

openai = pytest.importorskip("openai", reason="the official client is not installed")

KEY = "a-key-for-a-test"
ASKED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(serving: Any, start: Any) -> Callable[..., Any]:
    """Clients of servers with these settings."""

    def connect(path: str = "/t/first/v1", **settings: Any) -> Any:
        server = start(serving(**settings).desk, key=KEY)
        return openai.OpenAI(base_url=server.url + path, api_key=KEY, max_retries=0, timeout=20)

    return connect


def test_a_conversation_with_a_tool_is_one_row(client: Any, script: Any) -> None:
    turns = iter(['<tool_call>\n{"name": "calc", "arguments": {"x": "2+2"}}\n</tool_call>', "It is 4."])
    script.say = lambda request: next(turns)
    lines: list[str] = []
    api = client(record=lines)
    messages: list[Any] = [{"role": "user", "content": "2+2?"}]
    asked: dict[str, Any] = {"model": "tiny", "messages": messages, "tools": [CALCULATOR]}
    (choice,) = api.chat.completions.create(**asked, max_tokens=100).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("calc", {"x": "2+2"})
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "4"}]
    second = api.chat.completions.create(**asked, logprobs=True, extra_body={"return_token_ids": True})
    (choice,) = second.choices
    assert (choice.message.content, choice.finish_reason) == ("It is 4.", "stop")
    assert [entry.token for entry in choice.logprobs.content] == [*"It is 4.]"]
    assert second.prompt_token_ids == list(script.seen[1].prompt_tokens)
    assert second.usage.completion_tokens == 9
    api.post("/reward", body={"reward": 1.5}, cast_to=object)
    (row,) = map(json.loads, lines)
    assert row["environment_reward"] == 1.5
    assert row["prompt_tokens"] + row["response_tokens"] == second.prompt_token_ids + choice.token_ids
    assert [turn["author"] for turn in row["turns"]] == ["policy", "tool", "policy"]


def test_streams_say_the_same(client: Any, script: Any) -> None:
    api = client("/v1")
    events = list(api.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    said = [event.choices[0] for event in events if event.choices]
    assert "".join(choice.delta.content or "" for choice in said) == "yes"
    assert [choice.finish_reason for choice in said] == [None, "stop"]
    assert events[-1].usage.completion_tokens == 4
    script.say = lambda request: '<tool_call>\n{"name": "calc", "arguments": {"x": "1"}}\n</tool_call>'
    events = list(api.chat.completions.create(**ASKED, stream=True, tools=[CALCULATOR]))
    (call,) = events[0].choices[0].delta.tool_calls
    assert (call.index, call.function.name) == (0, "calc")


def test_texts_and_tokens_are_continued(client: Any, script: Any) -> None:
    api = client("/v1")
    tokens = script.tokenizer.encode("one", add_special_tokens=False)
    for prompt in ("one", tokens, [tokens], ["one"]):
        (choice,) = api.completions.create(model="tiny", prompt=prompt, logprobs=0, max_tokens=2).choices
        assert (choice.text, choice.finish_reason, choice.logprobs.tokens) == ("ye", "length", ["y", "e"])
        assert script.seen[-1].prompt_tokens == tuple(tokens)


def test_models_and_errors_have_the_clients_own_classes(client: Any) -> None:
    api = client()
    (model,) = api.models.list().data
    assert (model.id, model.max_model_len) == ("tiny", 4_000)
    with pytest.raises(openai.AuthenticationError):
        api.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        api.chat.completions.create(**{**ASKED, "model": "other"})
    with pytest.raises(openai.BadRequestError, match="temperature is 1 in this run") as caught:
        api.chat.completions.create(**ASKED, temperature=0.5)
    assert caught.value.param == "temperature"


def test_what_is_ignored_is_named(client: Any) -> None:
    raw = client(others="ignore").chat.completions.with_raw_response.create(**ASKED, temperature=0.5, seed=3)
    assert raw.headers["x-burnish-ignored"] == "seed, temperature"
    assert raw.parse().choices[0].message.content == "yes"
