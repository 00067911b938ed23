"""Parsers of tool calls by their name in a run file, and the choice of the one that a chat template needs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.agents.tools.parsers.protocol import Schemas, ToolParser
from burnish.agents.tools.parsers.tagged import Hermes, QwenXml
from burnish.agents.tools.parsers.whole_turn import LlamaJson, Pythonic
from burnish.agents.tools.schema import schema_of
from burnish.errors import ConfigError, RolloutError, did_you_mean
from burnish.outside.plugins import calling_outside, find_class
from burnish.types import Json

BUILT_INS: Mapping[str, ToolParser] = {
    "hermes": Hermes(),
    "qwen_xml": QwenXml(),
    "llama_json": LlamaJson(),
    "pythonic": Pythonic(),
}
"""Parsers by their name in a run file."""
AUTO = "auto"
"""In a run file: the built-in parser that `recognise` finds."""
FIELD = "conversation.parser"

Render = Callable[[Sequence[Mapping[str, Json]], Schemas], str]
"""Renders a conversation with the schemas of the offered tools, by a chat template."""

_EXAMPLE = ToolCall("look_up", {"city": 'Zürich "old town"', "days": 3, "exact": True, "sources": ["a", {"b": [1.5]}]})


def _look_up(city: str, days: int, exact: bool, sources: list):  # type: ignore[no-untyped-def]
    """Look up the weather.

    Args:
        city: The city.
        days: How many days.
        exact: Whether to look for the exact name.
        sources: Where to look.
    """
    raise NotImplementedError  # only described here


_EXAMPLE_SCHEMA: Mapping[str, Json] = schema_of(_look_up, name="look_up")
_QUESTION: Mapping[str, Json] = {"role": "user", "content": "How is the weather?"}
_ANSWER = "burnish-answer-begins-burnish-answer-ends"
_END_TOKEN = re.compile(r"(?:<\|[^<>|]{1,40}\|>|</s>)\s*\Z")


def find_parser(name: str) -> ToolParser:
    """Find the parser that `conversation.parser` names: a built-in, or `path/to/file.py:Class` or
    `package.module:Class`.

    Raises ConfigError if there is none, and for `auto`, which `recognise` turns into a name.
    """
    if name in BUILT_INS:
        return BUILT_INS[name]
    place, _, class_name = name.rpartition(":")
    if not (place and class_name):
        known = [AUTO, *BUILT_INS]
        ways = f"use {', '.join(known)}, path/to/file.py:Class or package.module:Class"
        raise ConfigError(
            f"{FIELD} is {name!r}, which is not a parser of tool calls", remedy=did_you_mean(name, known, ways)
        )
    found = find_class(
        name, field=FIELD, methods=("parse",), protocol="burnish.agents.tools.parsers.protocol.ToolParser"
    )
    with calling_outside(f"{FIELD} {name!r}, its constructor", ConfigError):
        return _Checked(name, found())


class _Checked:
    """A user's parser, whose failures and wrong results become errors that name it."""

    def __init__(self, name: str, parser: ToolParser) -> None:
        self._name = name
        self._parser = parser

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        with calling_outside(f"{FIELD} {self._name!r}", RolloutError):
            parsed = self._parser.parse(text, tools)
        match parsed:
            case Parsed(str(), tuple(calls)) if all(map(_is_whole, calls)):
                return parsed
        raise RolloutError(
            f"{FIELD} {self._name!r} returned {repr(parsed)[:200]}",
            remedy="return burnish.agents.tools.calls.Parsed(content, calls); calls are ToolCall(name, arguments by "
            "name) or MalformedCall(text, reason)",
        )


def _is_whole(call: object) -> bool:
    match call:
        case ToolCall(str(), Mapping()) | MalformedCall(str(), str()):
            return True
    return False


def recognise(render: Render) -> str:
    """Name of the built-in parser that recovers exactly the call that the chat template writes.

    `render` gives the text of a conversation. Raises ConfigError if no parser recovers the call.
    """
    turn = _turn_with_call(render)
    for name, parser in BUILT_INS.items():
        match parser.parse(turn, (_EXAMPLE_SCHEMA,)).calls:
            # As JSON, in which 1, 1.0 and true differ.
            case (ToolCall() as call,) if _written(call) == _written(_EXAMPLE):
                return name
    raise ConfigError(
        f"no parser of tool calls ({', '.join(BUILT_INS)}) reads what the chat template writes: {turn[:200]!r}",
        remedy=f"set {FIELD} (to path/to/file.py:Class for your own format); "
        "if the call is not in this text, the template does not render tool_calls: set model.chat_template",
    )


def _written(call: ToolCall) -> str:
    return json.dumps(call.to_dict(), sort_keys=True)


def _turn_with_call(render: Render) -> str:
    """The assistant's turn with a call, without the template's text around it and the token that ends it.

    The text around it is found by rendering the same conversation with an answer whose text is known.
    """
    call: Mapping[str, Json] = {"id": "call00001", **_EXAMPLE.to_dict()}
    answer: Mapping[str, Json] = {"role": "assistant", "content": _ANSWER}
    with_call = render([_QUESTION, {**answer, "content": "", "tool_calls": [dict(call)]}], (_EXAMPLE_SCHEMA,))
    with_answer = render([_QUESTION, answer], (_EXAMPLE_SCHEMA,))
    before, found, after = with_answer.partition(_ANSWER)
    if not found:
        raise ConfigError(
            "the chat template does not render what the assistant says",
            remedy="set model.chat_template to one that does",
        )
    same = itertools.takewhile(lambda both: both[0] == both[1], zip(before, with_call, strict=False))
    turn = with_call[sum(1 for _ in same) :]
    # A call may end with another token than an answer (Llama's <|eom_id|>).
    return turn.removesuffix(after) if after and turn.endswith(after) else _END_TOKEN.sub("", turn.rstrip())
