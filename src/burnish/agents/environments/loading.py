"""Find the environment that a run file names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from burnish.agents.environments.agents import find_agent
from burnish.agents.environments.games import GameSource, gymnasium_source, is_game, is_of_library
from burnish.agents.environments.instance import Maker, check_options
from burnish.agents.environments.protocol import EnvironmentSource
from burnish.agents.environments.tool_class import ToolClassSource
from burnish.errors import ConfigError, needing
from burnish.outside.plugins import find_callable
from burnish.types import Json


def _openenv_source(url: str, options: Mapping[str, Json], wanted: str) -> EnvironmentSource:
    with needing("'burnish[openenv]'", ConfigError, f"{wanted}, which needs the package websockets"):
        from burnish.agents.environments.openenv import openenv_source
    return openenv_source(url, options, wanted)


_KINDS: Mapping[str, Callable[[str, Mapping[str, Json], str], EnvironmentSource]] = {
    "gym": gymnasium_source,
    "openenv": _openenv_source,
}


def find_environment(
    name: str, options: Mapping[str, Json], *, where: str = "conversation.environment"
) -> EnvironmentSource:
    """The environment that a run file names, ready to start.

    name: `path/to/file.py:Class` or `package.module:Class` (or a function that makes the objects), `gym:ID`, or
    `openenv:URL`. `burnish.agents.environments.games.is_game` tells games from classes of tools. options: keyword
    arguments of the class, the function or `gymnasium.make`; of OpenEnv's, `timeout_seconds`. where: the field of the
    run file, for messages.

    Nothing is started, except that a function or `gymnasium.make` is called once, to learn what it makes, and an
    OpenEnv server is asked for its schemas. Raises ConfigError for what cannot be used, EnvironmentFailedError if a
    server does not answer.
    """
    kind, _, rest = name.partition(":")
    wanted = f"{where} is {name!r}"
    if kind == "agent":
        return find_agent(rest, options, f"{where.removesuffix('.environment')}.agent is {rest!r}")
    if kind in _KINDS and rest:
        return _KINDS[kind](rest, options, wanted)
    kinds = ", ".join(f"{kind}:NAME" for kind in _KINDS)
    remedy = "name a class, or a function that makes its objects"
    found = find_callable(name, "class", wanted, others=kinds, remedy=remedy)
    check_options(found, options, wanted, all_of_them=True)
    return _source(found, Maker(name, found, options), wanted)


def _source(found: Any, maker: Maker, wanted: str) -> EnvironmentSource:
    made_class = found if inspect.isclass(found) else maker.class_made(wanted)
    if not is_game(made_class):
        return ToolClassSource(maker, made_class, wanted)
    # `options` of Gymnasium's reset are its own; a column of this name (of a multiple choice, say) is something else.
    return GameSource(maker, made_class, wanted, without=("options",) if is_of_library(made_class) else ())
