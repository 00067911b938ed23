"""The section `conversation` of a run file: its short forms, and every contradiction with its message."""

import re
from typing import Any

import pytest

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError

RUN: dict[str, Any] = {"model": "m", "data": {"train": "a"}, "rewards": "math"}
TALK = {"tools": "calculator"}
AGENT = {"agent": "a.py:run"}
FORK = {"environment": "a.py:B", "trajectory": "fork"}


def load(conversation: Any, **fields: Any) -> RlConfig:
    return load_run_data({**RUN, "conversation": conversation, **fields}, [], "rl").config


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("calculator", [("calculator", {}, None, None)]),
        (["calculator", "a.py:look_up"], [("calculator", {}, None, None), ("a.py:look_up", {}, None, None)]),
        ({"python": {"state": "kept"}}, [("python", {"state": "kept"}, None, None)]),
        ([{"python": None}], [("python", {}, None, None)]),
        ({"name": "python", "options": {"a": 1}}, [("python", {"a": 1}, None, None)]),
        ({"name": "python", "options": {"a": 1}, "timeout_seconds": 20}, [("python", {"a": 1}, 20.0, None)]),
        ({"python": {"a": 1, "timeout_seconds": 20, "concurrency": 3}}, [("python", {"a": 1}, 20.0, 3)]),
        ({"a.py:look_up": {"concurrency": 3}}, [("a.py:look_up", {}, None, 3)]),
        ({"mcp": {"url": "http://h/mcp", "timeout_seconds": 5}}, [("mcp", {"url": "http://h/mcp"}, 5.0, None)]),
    ],
)
def test_tools_may_be_written_briefly_and_with_limits(written: Any, read: list[tuple[Any, ...]]) -> None:
    conversation = load({"tools": written}).conversation
    assert conversation is not None
    found = [(tool.name, tool.options, tool.timeout_seconds, tool.concurrency) for tool in conversation.tools]
    assert found == read


def test_tools_that_others_serve_do_not_run_in_a_conversations_process() -> None:
    conversation = load({"tools": ["calculator", "python", "a.py:look_up", {"mcp": {"command": "x"}}]}).conversation
    assert conversation is not None
    assert conversation.own_tools == ("calculator", "a.py:look_up")
    assert [place.field for place in conversation.named_places("c")][:-1] == ["c.tools.0", "c.tools.2"]


def game(**fields: Any) -> dict[str, Any]:
    """Two domains, one of which has these fields."""
    domains = {"game": {"train": "b", "share": 0.5, **fields}, "plain": {"train": "c", "share": 0.5}}
    return {"domains": domains, "data": {}}


@pytest.mark.parametrize(
    ("conversation", "fields", "why"),
    [
        ({}, {}, "conversation has no tools, no environment and no agent"),
        ({**TALK, "environment_options": {"a": 1}}, {}, "conversation.environment is not"),
        ({**TALK, "same_start": False}, {}, "conversation.environment is not"),
        ({"parser": "hermes"}, {}, "conversation.parser is set, but conversation.tools is not"),
        ({"tools": {"pyton": {"state": "kept"}}}, {}, "did you mean 'python'"),
        ({"tools": {"name": "calculator", "options": {"a": 1}}}, {}, "calculator is a function, which has no options"),
        ({"tools": ["calculator", "calculator"]}, {}, "'calculator' is listed twice"),
        ({**TALK, "max_turn_tokens": 65}, {"rollout": {"max_response_tokens": 64}}, "all turns together may have 64"),
        (TALK, {"data": {"train": "a", "chat": "never"}}, "is never, but conversation needs a chat template"),
        (TALK, {"rewards": "environment"}, "but no environment or agent rewards the prompts"),
        (None, {"rewards": "environment"}, "but no environment or agent rewards the prompts"),
        (TALK, {"partial": True, "max_staleness": 1, "cluster": {"rollout_workers": 1}}, "a turn of a conversation"),
        (TALK, {"rollout": {"ignore_eos": True}}, "so no turn of a conversation would end"),
        (TALK, {"scoring": {"truncate_token": "."}}, "but the turns of a conversation cannot be cut"),
        ({**AGENT, "trajectory": "fork"}, {}, "each edit always starts a new row"),
        ({**AGENT, **TALK}, {}, "conversation.tools is set, and so is conversation.agent"),
        ({**AGENT, "environment": "b.py:Game"}, {}, "conversation.environment is set, and so is"),
        ({**TALK, "agent_options": {"x": 1}}, {}, "conversation.agent is not"),
        ({"environment": "agent:a.py:run"}, {}, "names an agent"),
        (AGENT, {"partial": True, "max_staleness": 1}, "partial"),
        ({**AGENT, "agent_settings": "follow"}, {}, "agent_settings"),
        ({**TALK, "trajectory": "branch"}, {}, "trajectory"),
        (FORK, {"algorithm": {"preset": "turn_grpo"}}, "turn_grpo looks at all turns of a conversation"),
        (FORK, {"algorithm": {"preset": "gigpo"}}, "gigpo looks at all turns of a conversation"),
        (FORK, {"algorithm": {"preset": "ppo", "discount": "turn"}}, "turn looks at all turns of a conversation"),
        (FORK, {"rewards": [{"name": "environment", "options": {"by_turn": True}}]}, "by_turn looks at all turns"),
        ({**TALK, "max_turns": 0}, {}, "max_turns"),
        ({**TALK, "max_open": 0}, {}, "max_open"),
        ({**TALK, "max_turn_tokens": 0}, {}, "max_turn_tokens"),
        ({**TALK, "max_result_characters": 63}, {}, "max_result_characters"),
        ({**TALK, "call_timeout_seconds": 0}, {}, "call_timeout_seconds"),
        ({"tools": {"name": "calculator", "timeout_seconds": 0}}, {}, "timeout_seconds"),
        ({"tools": {"calculator": {"concurrency": 0}}}, {}, "concurrency"),
        ({"tools": {"calculator": {"concurrency": 10**9}}}, {}, "concurrency"),
        ({**TALK, "variables": "a b"}, {}, "variables"),
        ({**TALK, "turns": 3}, {}, "turns"),
        (None, game(conversation={}), "domains.game.conversation has no tools, no environment and no agent"),
        (None, game(conversation={**TALK, "max_turn_tokens": 9}, max_response_tokens=8),
         "is 9, but all turns together may have 8"),
        (None, {**game(conversation={"environment": "a.py:B"}), "rewards": [{"name": "environment"}]},
         "no environment or agent rewards the prompts of the domain plain"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(conversation: Any, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load(conversation, **fields)


@pytest.mark.parametrize(
    ("conversation", "fields"),
    [
        (TALK, {}),
        ({"environment": "a.py:B", "environment_options": {"a": 1}}, {"rewards": "environment"}),
        ({**AGENT, "agent_options": {"turns": 2}}, {"rewards": "environment"}),
        ({"tools": [{"mcp": {"command": "a"}}, {"mcp": {"command": "b"}}]}, {}),
        ({**TALK, "max_turn_tokens": 64}, {"rollout": {"max_response_tokens": 64}}),
        (TALK, {"data": {"train": "a", "chat": "always"}}),
    ],
)
def test_what_goes_together_is_taken(conversation: Any, fields: dict[str, Any]) -> None:
    assert load(conversation, **fields).conversation is not None
