"""JSON between tags, as Hermes, Qwen 2.5 and Qwen 3 write calls."""

from __future__ import annotations

import re

from burnish.tools.calls import Parsed, ToolCall
from burnish.tools.parsers.named import call_from_object
from burnish.tools.parsers.protocol import Schemas
from burnish.tools.parsers.tagged import CLOSE, OPEN, PayloadError, parse_tagged
from burnish.tools.plain import UnreadableError, read_json

_FORM = f'{OPEN}\n{{"name": "the tool", "arguments": {{"parameter": "value"}}}}\n{CLOSE}'
# A whole string, or what JSON has outside of strings. It ends before a backslash and before "<", which are only allowed
# in strings, so a tag outside of a string ends the JSON, and one within a string does not.
_PIECE = re.compile(r'[^"\\<]+|"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Hermes:
    """`<tool_call>`, a JSON object with name and arguments, `</tool_call>`. A turn may have several of them."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """The calls in a turn (see `ToolParser.parse`). The schemas are not needed, because JSON has types."""
        return parse_tagged(text, _read, _FORM)


def _read(text: str, position: int) -> tuple[ToolCall, int]:
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
    # No matter how many tags there are, this takes time in proportion to the text: of two scans that begin at
    # different tags, at each further tag at most one is within a string, and the other one ends there.
    while piece := _PIECE.match(text, position):
        position = piece.end()
    return position
