"""Data types of tool calls, as parsers read them from a turn, and the protocol of tools that threads call."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from burnish.agents.tools.plain import UnreadableError, shown
from burnish.types import Json


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of the tool `name`. `arguments` maps names of parameters to plain values."""

    name: str
    arguments: Mapping[str, Json] = field(hash=False)

    def to_dict(self) -> dict[str, Json]:
        """The call in the form of `burnish.types.Message.tool_calls`, which chat templates expect."""
        return {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """Text that starts like a call and cannot be read as one. `why` tells the model what is wrong and what to write."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A turn of the model, taken apart.

    `calls` are in the order of the text. `content` is the text outside the calls: the turn, unchanged, if it has no
    call, otherwise the text around the calls, without white space at both ends.
    """

    content: str
    calls: tuple[ToolCall | MalformedCall, ...] = ()

    @property
    def content_with_unread(self) -> str:
        """The content, and the calls that cannot be read, as they were written."""
        unread = [call.text for call in self.calls if isinstance(call, MalformedCall)]
        return "\n".join(part for part in (self.content, *unread) if part)


def id_of_calls(turn: int) -> str:
    """Prefix of the ids of a turn's calls, which two digits follow. Strict templates want nine letters and digits."""
    return f"call{turn % 1000:03d}"


def call_from_object(value: Json, *, keys: Collection[str], ignored: Collection[str] = ()) -> ToolCall:
    """Read a call from `{"name": ..., KEY: {...}}`, where KEY is one of `keys`.

    Keys in `ignored` are skipped. Raises UnreadableError if a key is missing, unknown or of another type.
    """
    arguments_key = next(iter(keys))
    if not isinstance(value, dict):
        raise UnreadableError(f"it is {shown(value)}, not a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableError('"name" must be the name of a tool' if "name" in value else 'it has no "name"')
    given = [key for key in keys if key in value]
    unknown = [key for key in value if key not in {"name", *keys, *ignored}]
    if unknown:
        hint = f'"{arguments_key}"' if not given else f'only "name" and "{given[0]}"'
        raise UnreadableError(f"it has the key {shown(unknown[0])}; use {hint}")
    if not given:
        raise UnreadableError(f'it has no "{arguments_key}"; without arguments write "{arguments_key}": {{}}')
    if len(given) > 1:
        raise UnreadableError(f'it has "{given[0]}" and "{given[1]}"; use only one of them')
    arguments = value[given[0]]
    if not isinstance(arguments, dict):
        raise UnreadableError(f'"{given[0]}" must be an object, not {shown(arguments)}')
    return ToolCall(name, arguments)


class ToolError(Exception):
    """A call has failed for a reason that the model should read: the message is in the tool's own words."""


class ServedTools(Protocol):
    """One or more tools that serve all conversations of a run.

    schemas: one for each tool, as `burnish.agents.tools.schema.schema_of` writes them.
    """

    schemas: tuple[Mapping[str, Json], ...]

    def call(self, conversation: Hashable, name: str, arguments: Mapping[str, Json], seconds: float) -> object:
        """Call the tool `name` and return its result: a text or plain data.

        Several threads may call, also for one conversation. Blocks for about `seconds` at most, then raises
        TimeoutError. Exceptions of the tool pass through.
        """

    def end(self, conversation: Hashable) -> None:
        """Release the state of a conversation, which may never have called anything."""

    def close(self) -> None:
        """Release everything. Idempotent."""
