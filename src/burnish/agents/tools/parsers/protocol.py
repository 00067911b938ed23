"""The protocol of parsers of tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from burnish.agents.tools.calls import Parsed
from burnish.types import Json

Schemas = Sequence[Mapping[str, Json]]
"""JSON schemas of the offered tools: `{"type": "function", "function": {...}}`, or only the inner object."""


class ToolParser(Protocol):
    """Reads the calls in a turn of the model. A class of your own needs only `parse`, and takes no arguments."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read the calls in a turn.

        `text` is the turn, decoded with its special tokens but without the token that ends it. Text that starts like a
        call but cannot be read is a `MalformedCall`. Calls within `<think>...</think>` do not count. No text may raise
        an error, and the time is proportional to its length. Calls need not fit `tools` (see
        `burnish.agents.tools.checking.check_call`): the schemas only supply the types that a format does not write.
        """
