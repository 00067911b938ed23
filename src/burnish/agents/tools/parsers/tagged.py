"""Calls between `<tool_call>` and `</tool_call>`: JSON (Hermes, Qwen 2.5 and 3), or tags (Qwen3-Coder)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from burnish.agents.tools.calls import MalformedCall, Parsed, ToolCall, call_from_object
from burnish.agents.tools.checking import allowed_types, find_tool, fits, parameters_of
from burnish.agents.tools.parsers.protocol import Schemas
from burnish.agents.tools.plain import UnreadableError, end_of_space, read_json, shown
from burnish.types import Json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THINK, _THOUGHT = "<think>", "</think>"
_MARK = re.compile(f"{OPEN}|{_THINK}|{_THOUGHT}")
_RESUME = re.compile(f"{OPEN}|{CLOSE}|{_THINK}|{_THOUGHT}")
_HERMES_FORM = f'{OPEN}\n{{"name": "the tool", "arguments": {{"parameter": "value"}}}}\n{CLOSE}'
# A whole string, or a stretch of JSON outside of strings. It ends before a backslash and before "<", which JSON allows
# only in strings, so that a tag outside of a string ends the JSON, and one within a string does not.
_JSON_PIECE = re.compile(r'[^"\\<]+|"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_END_FUNCTION, _END_PARAMETER = "</function>", "</parameter>"
_QWEN_FORM = f"{OPEN}\n<function=the_tool>\n<parameter=parameter>\nvalue\n{_END_PARAMETER}\n{_END_FUNCTION}\n{CLOSE}"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_TAG = re.compile(r"</?tool_call>|<function=|</function>|<parameter=|</parameter>")
# Qwen's own chat template writes values as Python prints them.
_CONSTANTS: Mapping[str, Json] = {
    **{"true": True, "True": True, "false": False, "False": False},
    **{"null": None, "None": None},
}

ReadPayload = Callable[[str, int], tuple[ToolCall, int]]
"""Reads the call that begins at a position, and returns it and its end. Raises PayloadError."""


class PayloadError(UnreadableError):
    """The text after `<tool_call>` is not a call. There is no other call in the text before `resume`."""

    def __init__(self, why: str, resume: int) -> None:
        super().__init__(why)
        self.resume = resume


def parse_tagged(text: str, read: ReadPayload, form: str) -> Parsed:
    """Find all calls outside of thoughts. `form` shows the model how to write a call.

    If the chat template begins the thought, the turn has only its end: an unmatched `</think>` makes everything before
    it a thought.
    """
    calls: list[ToolCall | MalformedCall] = []
    outside: list[str] = []
    position, has_thought = 0, False
    while mark := _MARK.search(text, position):
        outside.append(text[position : mark.start()])
        position = mark.end()
        if mark[0] == OPEN:
            call, position = _one_call(text, mark.start(), read, form)
            calls.append(call)
            continue
        if mark[0] == _THINK:
            closed = text.find(_THOUGHT, position)
            position = len(text) if closed < 0 else closed + len(_THOUGHT)
        elif not has_thought:
            calls, outside = [], [text[: mark.start()]]
        outside.append(text[mark.start() : position])
        has_thought = True
    outside.append(text[position:])
    return Parsed("".join(outside).strip(), tuple(calls)) if calls else Parsed(text)


def _one_call(text: str, start: int, read: ReadPayload, form: str) -> tuple[ToolCall | MalformedCall, int]:
    try:
        call, end = read(text, start + len(OPEN))
        close = end_of_space(text, end)
        if text.startswith(CLOSE, close):
            return call, close + len(CLOSE)
        why = f"the call is not closed by {CLOSE}"
        if close < len(text) and not text.startswith("<", close):
            why = f"between the end of the call and {CLOSE} there is other text: {shown(text[close : close + 40])}"
        raise PayloadError(why, end)
    except PayloadError as error:
        # Go on after this call or where another begins, so that one mistake does not lose the calls after it.
        following = _RESUME.search(text, error.resume)
        end = following.start() if following else len(text)
        end += len(CLOSE) if text.startswith(CLOSE, end) else 0
        return MalformedCall(text[start:end], f"This is not a tool call: {error}. Write {form}"), end


class Hermes:
    """`<tool_call>`, a JSON object with name and arguments, `</tool_call>`. A turn may have several of them."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read the calls in a turn (see `ToolParser.parse`). The schemas are not needed, because JSON has types."""
        return parse_tagged(text, _read_json_call, _HERMES_FORM)


def _read_json_call(text: str, position: int) -> tuple[ToolCall, int]:
    end = _end_of_json(text, position)
    resume = position  # not `end`, which may be far behind this call if a quotation mark is missing
    try:
        if text.startswith('"', end):
            raise UnreadableError("a text in it is not closed by a quotation mark")
        value = read_json(text[position:end])
        resume = end
        return call_from_object(value, keys=("arguments",)), end
    except UnreadableError as error:
        raise PayloadError(str(error), resume) from None


def _end_of_json(text: str, position: int) -> int:
    # Linear in the length of the text, for any number of tags: of two scans that begin at different tags, at most one
    # is within a string at each further tag, and the other one ends there.
    while piece := _JSON_PIECE.match(text, position):
        position = piece.end()
    return position


class QwenXml:
    """`<tool_call>`, `<function=NAME>` with a `<parameter=NAME>` for each argument, and the tags that close them.

    Values are texts. They become numbers, lists and so on where the schema of the tool asks for it; a text that is no
    such value stays a text. No value may hold one of the format's own tags.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read the calls in a turn (see `ToolParser.parse`). A value whose type is not in the schemas stays a text."""
        return parse_tagged(text, lambda whole, position: _read_function(whole, position, tools), _QWEN_FORM)


def _read_function(text: str, position: int, tools: Schemas) -> tuple[ToolCall, int]:
    function = _FUNCTION.match(text, position)
    if function is None:
        raise PayloadError(f"{OPEN} is not followed by <function=NAME>", resume=position)
    name = function[1].strip()
    tool = find_tool(name, tools)
    types = parameters_of(tool) if tool else {}
    arguments: dict[str, Json] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        key = parameter[1].strip()
        if key in arguments:
            raise PayloadError(f"the parameter {shown(key)} occurs twice", resume=position)
        end = _TAG.search(text, parameter.end())
        if end is None or end[0] != _END_PARAMETER:
            resume = len(text) if end is None else end.start()
            raise PayloadError(f"the parameter {shown(key)} is not closed by {_END_PARAMETER}", resume=resume)
        value = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(value, types.get(key, {}))
        position = end.end()
    position = end_of_space(text, position)
    if not text.startswith(_END_FUNCTION, position):
        raise PayloadError(f"<function={name}> is not closed by {_END_FUNCTION}", resume=position)
    return ToolCall(name, arguments), position + len(_END_FUNCTION)


def _typed(text: str, schema: Mapping[str, Json]) -> Json:
    """Convert a text to a value of another type if the schema allows that and the text can be read so.

    A text that fits no type is returned unchanged, and `check_call` reports it.
    """
    if allowed_types(schema) <= {"string"}:
        return text
    stripped = text.strip()
    try:
        value = _CONSTANTS[stripped] if stripped in _CONSTANTS else read_json(stripped)
    except UnreadableError:
        return text
    return value if not isinstance(value, str) and fits(value, schema) else text
