"""Load the tools that a run file names: built-ins, and functions in files and modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from burnish.agents.tools.calculator import calculator
from burnish.agents.tools.schema import schema_of
from burnish.errors import ConfigError, did_you_mean
from burnish.outside.plugins import find_member
from burnish.types import Json

BUILT_INS: Mapping[str, Callable[..., object]] = {"calculator": calculator}
"""Tools by their name in a run file."""


@dataclass(frozen=True, slots=True)
class LoadedTool:
    """A function that the model may call by `name`, with the schema that the model sees."""

    name: str
    schema: Mapping[str, Json] = field(hash=False)
    function: Callable[..., object]


def load_tools(names: Sequence[str], *, where: str = "tools") -> tuple[LoadedTool, ...]:
    """Load the tools of a run file's list, in its order: built-ins, `path/to/file.py:function` or
    `package.module:function`.

    `where` is the field of the run file, for messages. Raises ConfigError if one does not exist, cannot be imported, is
    not a function, or has no schema (`schema_of`), and if two have the same name for the model.
    """
    loaded: dict[str, tuple[str, LoadedTool]] = {}
    for entry in names:
        tool = _load(entry, where)
        if tool.name in loaded:
            raise ConfigError(
                f"{where} has two tools named {tool.name!r}: {loaded[tool.name][0]!r} and {entry!r}",
                remedy="remove or rename one of them: a model calls tools by this name alone",
            )
        loaded[tool.name] = (entry, tool)
    return tuple(tool for _, tool in loaded.values())


def _load(entry: str, where: str) -> LoadedTool:
    place, _, name = entry.rpartition(":")
    if entry in BUILT_INS:
        name, function = entry, BUILT_INS[entry]
    elif place and name:
        function = _function(place, name, f"{where} has {entry!r}")
    else:
        known = [*BUILT_INS, "python", "mcp"]  # the last two are served, not loaded
        ways = f"use {', '.join(known)}, path/to/file.py:function or module:function"
        raise ConfigError(
            f"{where} has {entry!r}, which is not a built-in tool", remedy=did_you_mean(entry, known, ways)
        )
    return LoadedTool(name, schema_of(function, name=name), function)


def _function(place: str, name: str, wanted: str) -> Callable[..., object]:
    found = find_member(place, name, wanted)
    if not inspect.isfunction(found):
        kind = "class" if inspect.isclass(found) else type(found).__name__
        raise ConfigError(f"{wanted}, which is not a function but a {kind}", remedy="name a function, made with def")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise ConfigError(f"{wanted}, which is a generator", remedy="return one text, or one value of plain data")
    return found
