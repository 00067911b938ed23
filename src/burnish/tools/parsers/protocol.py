"""What a parser of tool calls is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from burnish.tools.calls import Parsed
from burnish.types import Json

Schemas = Sequence[Mapping[str, Json]]
"""JSON schemas of the offered tools: `{"type": "function", "function": {...}}`, or only the inner object."""


class ToolParser(Protocol):
    """Reads the calls in a turn of the model. A class of your own needs only `parse`, and takes no arguments."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """The calls in a turn.

        `text` is the turn, decoded with its special tokens but without the token that ends it. What starts like a call
        and is not one is a `MalformedCall`. Calls within `<think>...</think>` are not calls. Whatever the text, nothing
        is raised, and the time is proportional to its length. Calls need not fit `tools`
        (`burnish.tools.checking.check_call` tells): they only say how to read forms that do not write down types.
        """
        ...
