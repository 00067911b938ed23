"""The turns of a recorded response as the report page shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from burnish.observability.recorder import RecordedLine

MOST_CHARACTERS = 4_000
"""Longest text of a message or argument on the page, in addition to its tokens."""


class ShownCall(TypedDict):
    """A call of a tool: its name, and names and values of its arguments as text."""

    name: str
    arguments: list[tuple[str, str]]


class ShownMessage(TypedDict):
    """One message. `name` is the name of a tool."""

    name: str
    text: str


class ShownTurn(TypedDict):
    """The tokens from `start` up to `stop` of a response, by one author. `calls`: of a turn of the policy; `messages`:
    of a tool or an environment, which may also speak at the end of the policy's last turn. seconds: of the policy, then
    of each message, or of all of them."""

    author: str
    start: int
    stop: int
    calls: list[ShownCall]
    messages: list[ShownMessage]
    reward: NotRequired[float | str]
    seconds: NotRequired[list[float | None]]


def shown_turns(line: RecordedLine) -> list[ShownTurn]:
    """The turns of a recorded response; empty if it is a single one."""
    turns = line.get("turns", ())
    times = line.get("turn_seconds") or [()] * len(turns)  # earlier versions recorded none
    return [_shown(turn, seconds) for turn, seconds in zip(turns, times, strict=True)]


def seconds_by_author(line: RecordedLine) -> dict[str, float]:
    """Seconds that each author's turns took together, calls side by side added up; empty if none was recorded."""
    totals: dict[str, float] = {}
    for turn in shown_turns(line):
        for index, seconds in enumerate(turn.get("seconds", ())):
            author = "environment" if turn["author"] == "policy" and index else turn["author"]  # its last words
            totals[author] = totals.get(author, 0.0) + (seconds or 0.0)
    return totals


def spoken(line: RecordedLine) -> list[str]:
    """The text of each turn, for a response that was recorded without the texts of its tokens."""
    return ["\n".join(message["content"] for message in _own(turn)) for turn in line["turns"]]


def _own(turn: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of the turn's author: without an environment's last words in a turn of the policy."""
    return [m for m in turn["messages"] if turn["author"] != "policy" or m["role"] == "assistant"]


def by_text(turns: Sequence[ShownTurn]) -> list[ShownTurn]:
    """The turns with `start` and `stop` as if each text of `spoken` were one token."""
    return [{**turn, "start": index, "stop": index + 1} for index, turn in enumerate(turns)]


def cut_turns(turns: Sequence[ShownTurn], tokens: int, share: float) -> list[ShownTurn]:
    """Cut the turns of a response after so many tokens, with that share of each text. The last turn includes one
    further token, which says that the response is cut."""

    def cut(text: str) -> str:
        return shortened(text, int(len(text) * share))

    def cut_call(call: ShownCall) -> ShownCall:
        return {**call, "arguments": [(name, cut(text)) for name, text in call["arguments"]]}

    return [
        {
            **turn,
            "stop": tokens + 1 if turn["stop"] >= tokens else turn["stop"],
            "calls": [cut_call(call) for call in turn["calls"]],
            "messages": [{**message, "text": cut(message["text"])} for message in turn["messages"]],
        }
        for turn in turns
        if turn["start"] < tokens
    ]


def _shown(turn: Mapping[str, Any], seconds: Sequence[float | None]) -> ShownTurn:
    messages = turn["messages"]
    shown: ShownTurn = {
        "author": turn["author"],
        "start": turn["start"],
        "stop": turn["stop"],
        "calls": [_call(call) for message in messages for call in message.get("tool_calls", ())],
        # The policy's text is shown by its tokens. Its last turn also has the environment's last words.
        "messages": [
            {"name": str(m.get("name", "")), "text": shortened(m["content"])}
            for m in messages
            if m["role"] != "assistant"
        ],
    }
    if "reward" in turn:
        reward = turn["reward"]
        shown["reward"] = float(f"{reward:.4g}") if isinstance(reward, float) else reward
    if seconds:
        shown["seconds"] = [None if one is None else float(f"{one:.3g}") for one in seconds]
    return shown


def _call(call: Mapping[str, Any]) -> ShownCall:
    function = call["function"]
    arguments = [(str(name), shortened(as_text(value))) for name, value in function["arguments"].items()]
    return {"name": str(function["name"]), "arguments": arguments}


def as_text(value: object) -> str:
    """Return text unchanged, so that programs keep their lines, and other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """Cut the text for the page if it is longer."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]} […{left_out:,} more characters]"
