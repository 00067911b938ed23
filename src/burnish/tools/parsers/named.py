"""A call as a JSON object with the name of the tool and its arguments."""

from __future__ import annotations

from collections.abc import Collection

from burnish.tools.calls import ToolCall
from burnish.tools.plain import UnreadableError, shown
from burnish.types import Json


def call_from_object(value: Json, *, keys: Collection[str], ignored: Collection[str] = ()) -> ToolCall:
    """The call that `{"name": ..., KEY: {...}}` means, where KEY is one of `keys`.

    Raises UnreadableError if a key is missing, unknown (those in `ignored` have no meaning) or of another type.
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
