"""Environments on a server of OpenEnv (https://github.com/meta-pytorch/OpenEnv), spoken to in its own protocol.

A session is a WebSocket: `reset`, `step` and `close`, and the tools of environments that are MCP servers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from burnish.environments import openenv_texts as texts
from burnish.environments.openenv_session import RefusedError, Server, Session, begin
from burnish.environments.protocol import Opening, Step
from burnish.environments.values import flag_of, number_of
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json
from burnish.words import suggestion

_TIMEOUT_SECONDS = 30.0
_OPTIONS = ("timeout_seconds", "token_variable")


def openenv_source(url: str, options: Mapping[str, Json], wanted: str) -> OpenEnvSource:
    """The environment of the server at a URL. Options: `timeout_seconds`, and `token_variable`, the name of the
    variable that holds a token. Raises ConfigError if URL or options cannot be used, EnvironmentFailedError if there
    is no server."""
    if urlsplit(url).scheme not in ("http", "https", "ws", "wss") or not urlsplit(url).netloc:
        raise ConfigError(f"{wanted}, which is not the address of a server", remedy="use openenv:http://HOST:PORT")
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(f"{wanted}, which has no option {name!r}", remedy=suggestion(name, _OPTIONS))
    seconds = options.get("timeout_seconds", _TIMEOUT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ConfigError(f"{wanted}, whose timeout_seconds is {seconds!r}", remedy="give a number of seconds above 0")
    return OpenEnvSource(Server(url.rstrip("/"), float(seconds), _token(options.get("token_variable"), wanted)))


def _token(variable: Json, wanted: str) -> str | None:
    """What the variable holds; ConfigError, which does not show it, if nothing or what no header can hold."""
    if variable is None:
        return None
    if not isinstance(variable, str):
        raise ConfigError(f"{wanted}, whose token_variable is {variable!r}", remedy="give the name of a variable")
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(
            f"{wanted}, whose token_variable {variable!r} is not set for it",
            remedy="set it where the run is started, and add it to conversation.variables",
        )
    if not token.isascii() or not token.isprintable():
        raise ConfigError(
            f"{wanted}, whose token_variable {variable!r} holds what no header can hold",
            remedy="set it to a token of printable ASCII characters",
        )
    return token


class OpenEnvSource:
    """Sessions with a server.

    The tools are those of its MCP server, if it has one. Otherwise, if its actions are a text and nothing else that
    must be given, turns are the actions. Otherwise there is one tool, `step`, with the fields of an action.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._action = server.schema()["action"]
        session, tools = begin(server, _tools)
        session.close()
        if texts.calls_tools(self._action) and not tools:
            raise server.failed("takes calls of tools, but lists none")
        self._is_mcp = bool(tools)
        self._text_field = None if tools else texts.text_field(self._action)
        self.answers_text = self._text_field is not None
        self.schemas: tuple[Mapping[str, Json], ...] = tuple(tools)
        if not tools and not self.answers_text:
            self.schemas = (texts.step_schema(self._action),)

    def start(self, row: Mapping[str, Json], seed: int) -> OpenEnv:
        """A session, after `reset` with the row and `seed` (unless the row has one). The server takes of it what the
        environment's `reset` takes."""

        def reset(session: Session) -> Mapping[str, Any]:
            try:
                return session.ask("reset", {"seed": seed, **row})
            except RefusedError as error:
                raise self._server.failed(f"refuses to reset: {error}") from error

        session, answer = begin(self._server, reset)
        environment = OpenEnv(session, self._server, self._text_field, self._by_step())
        environment.opening = environment.read(answer, "reset").text or None
        return environment

    def _by_step(self) -> str | None:
        """What the actions of a step are: `call_tool` (whose answers have rewards), `fields`, or None if its tools are
        not called by steps."""
        if not self._is_mcp:
            return "fields"
        return "call_tool" if texts.calls_tools(self._action) else None


class OpenEnv:
    """One session. Rewards of its steps are those of turns, and their sum that of the whole."""

    opening: Opening = None

    def __init__(self, session: Session, server: Server, text_field: str | None, by_step: str | None) -> None:
        self._session = session
        self._server = server
        self._text_field = text_field
        self._by_step = by_step
        self._rewards: list[float] = []
        self._has_stepped = False
        self._ended = False

    def call(self, name: str, arguments: Mapping[str, Json]) -> Step:
        """Call a tool of the server, or take a step with these fields. Raises ValueError with what the server, or its
        tool, has to say against it."""
        try:
            if self._by_step is None:
                result = self._session.ask_mcp("tools/call", {"name": name, "arguments": dict(arguments)})
                return Step(_result({"result": result}))
            action = dict(arguments)
            if self._by_step == "call_tool":
                action = {"type": "call_tool", "tool_name": name, "arguments": action}
            return self._taken(action)
        except RefusedError as error:
            raise ValueError(str(error)) from None

    def step(self, text: str) -> Step:
        """Take a step whose one field is the text. A text that the server refuses is answered with the reason."""
        if self._text_field is None:
            raise EnvironmentFailedError(f"{self._server.name} answers calls of its tools, not texts")
        try:
            return self._taken({self._text_field: text})
        except RefusedError as error:
            self._rewards.append(0.0)
            return Step(f"Error: {error}", reward=0.0)

    def ended(self) -> bool:
        """Whether a step has said `done`."""
        return self._ended

    def reward(self) -> float | None:
        """The sum of the rewards of all steps, which is 0 before the first one. None if none of them had one, or if
        there are only tools of MCP, whose calls have none."""
        awaits_a_step = not self._has_stepped and (self._text_field is not None or self._by_step is not None)
        return sum(self._rewards, 0.0) if self._rewards or awaits_a_step else None

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def read(self, answer: Mapping[str, Any], what: str) -> Step:
        """An observation as a step. Raises ValueError if it is that of a tool that failed."""
        observation = answer.get("observation")
        if not isinstance(observation, dict):
            raise self._server.failed(f"answered {what!r} without an observation")
        reward = answer.get("reward")
        paid = None if reward is None else number_of(reward, f"the reward of {self._server.name}")
        ended = flag_of(answer.get("done", False), f"`done` of {self._server.name}")
        self._ended = ended
        if what == "step" and paid is not None:
            self._rewards.append(paid)
        is_result = self._by_step == "call_tool" and "tool_name" in observation
        return Step(_result(observation) if is_result else texts.observation_text(observation), paid, ended)

    def _taken(self, action: Mapping[str, Json]) -> Step:
        self._has_stepped = True
        return self.read(self._session.ask("step", action), "step")


def _tools(session: Session) -> list[Mapping[str, Json]]:
    """The tools of the environment's MCP server; none if it has no such server."""
    try:
        listed = session.ask_mcp("tools/list", {})
    except RefusedError:
        return []
    tools = listed.get("tools", ()) if isinstance(listed, Mapping) else ()
    return [
        texts.tool_schema(
            str(tool["name"]),
            str(tool.get("description") or ""),
            tool.get("input_schema") or tool.get("inputSchema") or {},
        )
        for tool in tools
    ]


def _result(observation: Mapping[str, Any]) -> str:
    error = texts.result_error(observation)
    if error is not None:
        raise ValueError(error)
    return texts.result_text(observation.get("result"))
