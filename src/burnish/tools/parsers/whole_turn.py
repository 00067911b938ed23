"""Calls that are a whole turn, except for a thought before them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from burnish.tools.calls import MalformedCall, Parsed, ToolCall

_TAGS = re.compile(r"\s*(?:<\|python_(?:tag|start|end)\|>\s*)*")
_END_TAG = "<|python_end|>"
_THOUGHT = "</think>"

ReadTurn = Callable[[str, bool], Sequence[ToolCall | MalformedCall]]
"""Reads the calls of a text without thought and tags, given whether tags mark it as calls. Empty: it has none."""


def parse_whole_turn(text: str, read: ReadTurn) -> Parsed:
    """The calls in a turn that has nothing else, except for a thought and Llama's tags.

    The turn may have only the end of its thought, because the chat template begins it. An argument may have the same
    text, so a turn is first read as if it had no thought.
    """
    thought = text.find(_THOUGHT) + len(_THOUGHT) if _THOUGHT in text else 0
    for start in dict.fromkeys((0, thought)):
        body = text[start:].rstrip().removesuffix(_END_TAG)
        tags = _TAGS.match(body)
        begin = tags.end() if tags else 0
        calls = read(body[begin:].rstrip(), "<|" in body[:begin])
        if calls and (start == thought or all(isinstance(call, ToolCall) for call in calls)):
            return Parsed(text[:start].strip(), tuple(calls))
    return Parsed(text)
