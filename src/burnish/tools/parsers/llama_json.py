"""JSON as the whole turn, as Llama 3.1 to 4 write calls."""

from __future__ import annotations

import re

from burnish.tools.calls import MalformedCall, Parsed, ToolCall
from burnish.tools.parsers.named import call_from_object
from burnish.tools.parsers.protocol import Schemas
from burnish.tools.parsers.whole_turn import parse_whole_turn
from burnish.tools.plain import UnreadableError, end_of_space, read_json_at
from burnish.types import Json

_FORM = '{"name": "the tool", "parameters": {"parameter": "value"}}'
_KEYS = ("parameters", "arguments")
# How JSON begins that was meant as a call, in case it turns out not to be JSON.
_LIKE_A_CALL = re.compile(r"""\{\s*['"]?(?:name|parameters|arguments|type['"]?\s*:\s*['"]?function)\b""")


class LlamaJson:
    """A turn that is only JSON: an object with name and parameters (or arguments), or several separated by `;`.

    `<|python_tag|>` may come first. Without it, a JSON object that has no parameters and more than a name is an answer,
    not a call.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """The calls in a turn (see `ToolParser.parse`). The schemas are not needed, because JSON has types."""
        return parse_whole_turn(text, _read)


def _read(text: str, tagged: bool) -> list[ToolCall | MalformedCall]:
    calls: list[ToolCall | MalformedCall] = []
    if not tagged and not _is_call(text):
        return calls
    position = 0
    while not calls or position < len(text):
        start = position
        try:
            value, position = read_json_at(text, start)
        except UnreadableError as error:  # where the next call begins cannot be told
            return [*calls, _malformed(text[start:], str(error))]
        calls.append(_read_one(value, text[start:position]))
        position = end_of_space(text, position)
        position = end_of_space(text, position + text.startswith(";", position))
    return calls


def _is_call(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        value, _ = read_json_at(text, 0)
    except UnreadableError:
        return _LIKE_A_CALL.match(text) is not None
    return isinstance(value, dict) and (
        any(key in value for key in _KEYS) or {"name"} <= value.keys() <= {"name", "type"}
    )


def _read_one(value: Json, text: str) -> ToolCall | MalformedCall:
    try:
        return call_from_object(value, keys=_KEYS, ignored=("type",))
    except UnreadableError as error:
        return _malformed(text, str(error))


def _malformed(text: str, why: str) -> MalformedCall:
    return MalformedCall(text, f"This is not a tool call: {why}. Write only {_FORM}, and ; between several calls")
