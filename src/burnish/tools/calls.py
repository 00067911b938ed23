"""Calls of tools, as parsers read them from a turn of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from burnish.types import Json


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of the tool `name`. `arguments` maps names of parameters to plain values."""

    name: str
    arguments: Mapping[str, Json] = field(hash=False)

    def to_dict(self) -> dict[str, Json]:
        """The call in the form of `burnish.types.Message.tool_calls`, which chat templates expect."""
        return {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}

    def is_exactly(self, other: ToolCall) -> bool:
        """Whether names and arguments agree in value and type. (For `==`, 1, 1.0 and True are the same.)"""
        return self.name == other.name and _exact(self.arguments) == _exact(other.arguments)


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """What starts like a call and is not one. `why` is for the model: what is wrong, and what to write instead."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A turn of the model, taken apart.

    `calls` are in the order of the text. `content` is the text outside the calls: the turn, unchanged, if it has no
    call, otherwise what surrounds the calls, without white space at both ends.
    """

    content: str
    calls: tuple[ToolCall | MalformedCall, ...] = ()


def _exact(arguments: Mapping[str, Json]) -> str:
    return json.dumps(dict(arguments), sort_keys=True)
