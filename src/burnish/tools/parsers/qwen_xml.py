"""Functions and parameters as tags, as Qwen3-Coder writes calls."""

from __future__ import annotations

import re
from collections.abc import Mapping

from burnish.tools.calls import Parsed, ToolCall
from burnish.tools.checking import allowed_types, find_tool, fits, parameters_of
from burnish.tools.parsers.protocol import Schemas
from burnish.tools.parsers.tagged import CLOSE, OPEN, PayloadError, parse_tagged
from burnish.tools.plain import UnreadableError, end_of_space, read_json, shown
from burnish.types import Json

_END_FUNCTION, _END_PARAMETER = "</function>", "</parameter>"
_FORM = f"{OPEN}\n<function=the_tool>\n<parameter=parameter>\nvalue\n{_END_PARAMETER}\n{_END_FUNCTION}\n{CLOSE}"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_TAG = re.compile(r"</?tool_call>|<function=|</function>|<parameter=|</parameter>")
# As Qwen's own chat template writes them, which prints Python's values.
_CONSTANTS: Mapping[str, Json] = {
    **{"true": True, "True": True, "false": False, "False": False},
    **{"null": None, "None": None},
}


class QwenXml:
    """`<tool_call>`, `<function=NAME>` with a `<parameter=NAME>` for each argument, and the tags that close them.

    Values are texts. They become numbers, lists and so on where the schema of the tool asks for it, unless it also
    allows a text and they are not such a value. No value may hold one of the form's own tags.
    """

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """The calls in a turn (see `ToolParser.parse`). A value whose type is not in the schemas stays a text."""
        return parse_tagged(text, lambda whole, position: _read(whole, position, tools), _FORM)


def _read(text: str, position: int, tools: Schemas) -> tuple[ToolCall, int]:
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
    """The value of another type than text that the schema allows and the text is; otherwise the text.

    Whether a text fits is for `check_call` to say.
    """
    if allowed_types(schema) <= {"string"}:
        return text
    stripped = text.strip()
    try:
        value = _CONSTANTS[stripped] if stripped in _CONSTANTS else read_json(stripped)
    except UnreadableError:
        return text
    return value if not isinstance(value, str) and fits(value, schema) else text
