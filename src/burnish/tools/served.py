"""Tools that do not run in a process of their conversation, but are asked from threads of the training process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from burnish.types import Json


class ToolError(Exception):
    """A call has failed, for a reason that the model is to read: the message says it in the tool's own words."""


class ServedTools(Protocol):
    """One or more tools that serve all conversations of a run.

    schemas: of the tools, as `burnish.tools.schema.schema_of` writes them.
    """

    schemas: tuple[Mapping[str, Json], ...]

    def call(self, conversation: Hashable, name: str, arguments: Mapping[str, Json], seconds: float) -> object:
        """The result of the tool `name`: a text or plain data.

        Several threads may call, for one conversation one at a time. Blocks for about `seconds` at most, then raises
        TimeoutError. Raises what the tool raises.
        """
        ...

    def end(self, conversation: Hashable) -> None:
        """Let go of what is kept for a conversation. It may never have called anything."""
        ...

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...
