"""Environments on a server of OpenEnv (https://github.com/meta-pytorch/OpenEnv), spoken to in its own protocol.

A session is a WebSocket: `reset`, `step` and `close`, and the tools of environments that are MCP servers. Imported when
a run file names such a server, because it needs the package websockets.

OpenEnv's own client is not used: importing it needs FastAPI and FastMCP, it asks for no schemas, its errors do not say
which field was refused, and after a late answer it silently goes on in another episode.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from burnish.agents.environments.mcp_tools import result_of_call, schema_of_tool
from burnish.agents.environments.protocol import Opening, Step
from burnish.agents.environments.values import flag_of, number_of, text_of
from burnish.agents.tools.calls import ToolError
from burnish.config.secrets import key_in
from burnish.errors import ConfigError, EnvironmentFailedError, suggestion
from burnish.types import Json

_OPTIONS = ("timeout_seconds", "token_variable")
_LARGEST = 100 * 2**20
"""Bytes of a message, as in OpenEnv's own client."""
_OF_SESSION = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Errors that end the session. All others are about one message."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LOOK = "see what the server has written, and whether it still runs"
_START = "start the server, and check the URL (the port, http or https)"
_MORE = "raise max_concurrent_envs where the server is made, to as many conversations as are held at once"


def openenv_source(url: str, options: Mapping[str, Json], wanted: str) -> OpenEnvSource:
    """The environment of the server at a URL. Options: `timeout_seconds`, and `token_variable`, the name of the
    variable that holds a token. Raises ConfigError if URL or options cannot be used, EnvironmentFailedError if there
    is no server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
        raise ConfigError(f"{wanted}, which is not the address of a server", remedy="use openenv:http://HOST:PORT")
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(f"{wanted}, which has no option {name!r}", remedy=suggestion(name, _OPTIONS))
    seconds = options.get("timeout_seconds", 30.0)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ConfigError(f"{wanted}, whose timeout_seconds is {seconds!r}", remedy="give a number of seconds above 0")
    address = f"http{'s' * (parts.scheme in ('https', 'wss'))}://{parts.netloc}{parts.path.rstrip('/')}"
    variable = options.get("token_variable")
    also = "; and add it to conversation.variables"
    token = key_in(None if variable is None else str(variable), f"{wanted}, whose token_variable", also)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return OpenEnvSource(ServerAddress(address, float(seconds), headers))


class OpenEnvSource:
    """Sessions with a server.

    The tools come from its MCP server, if it has one. Otherwise, if its actions are a text and nothing else that
    must be given, turns are the actions. Otherwise there is one tool, `step`, with the fields of an action.

    by_step: whether tools are called by steps, which may have rewards, and not next to them. field: of the text.
    """

    def __init__(self, server: ServerAddress) -> None:
        self.server = server
        action = server.action_schema()
        session, tools = begin(server, _tools)
        session.close()
        self.by_step = _fields(action).keys() == {"tool_name", "arguments"}  # OpenEnv's CallToolAction
        if self.by_step and not tools:
            raise server.failed("takes calls of tools, but lists none")
        self.is_mcp = bool(tools)
        self.field = None if tools else text_field(action)
        self.answers_text = self.field is not None
        self.schemas: tuple[Mapping[str, Json], ...] = tuple(tools) or (() if self.field else (step_schema(action),))

    def start(self, row: Mapping[str, Json], seed: int) -> OpenEnv:
        """A session, after `reset` with the row and `seed` (unless the row has one). The server takes of it what the
        environment's `reset` takes."""
        given = {"seed": seed, **row}
        try:
            return begin(self.server, lambda session: OpenEnv(self, session, session.ask("reset", given)))[1]
        except RefusedError as error:
            raise self.server.failed(f"refuses to reset: {error}") from error


class OpenEnv:
    """One session. The reward of a step is the reward of its turn, and their sum is the reward of the whole."""

    def __init__(self, source: OpenEnvSource, session: OpenEnvSession, first: Mapping[str, Any]) -> None:
        self._source = source
        self._session = session
        self._rewards: list[float] = []
        self._has_stepped = self._ended = False
        self.opening: Opening = self._read(first, "reset").text or None

    def call(self, name: str, arguments: Mapping[str, Json]) -> Step:
        """Call a tool of the server, or take a step with these fields. Raises ToolError with what the server, or its
        tool, has to say against it."""
        if not self._source.is_mcp:
            return self._step(arguments)
        if self._source.by_step:
            return self._step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        result = self._session.ask_mcp("tools/call", {"name": name, "arguments": arguments})
        return Step(result_text({"result": result}))

    def step(self, text: str) -> Step:
        """Take a step whose one field is the text. A text that the server refuses is answered with the reason."""
        try:
            return self._step({str(self._source.field): text})
        except RefusedError as error:
            self._rewards.append(0.0)
            return Step(f"Error: {error}", reward=0.0)

    def ended(self) -> bool:
        """Return whether a step has said `done`."""
        return self._ended

    def reward(self) -> float | None:
        """The sum of the rewards of all steps, which is 0 before the first one. None if none of them had one, or if
        there are only tools of MCP, whose calls have none."""
        awaits_a_step = not self._has_stepped and (self._source.by_step or not self._source.is_mcp)
        return sum(self._rewards, 0.0) if self._rewards or awaits_a_step else None

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _step(self, action: Mapping[str, Any]) -> Step:
        self._has_stepped = True
        return self._read(self._session.ask("step", action), "step")

    def _read(self, answer: Mapping[str, Any], what: str) -> Step:
        """An observation as a step. Raises ToolError if it comes from a tool that failed."""
        server, observation, reward = self._source.server, answer.get("observation"), answer.get("reward")
        if not isinstance(observation, dict):
            raise server.failed(f"answered {what!r} without an observation")
        paid = None if reward is None else number_of(reward, f"the reward of openenv:{server.url}")
        self._ended = flag_of(answer.get("done", False), f"`done` of openenv:{server.url}")
        self._rewards += [paid] if what == "step" and paid is not None else []
        is_result = self._source.by_step and "tool_name" in observation
        return Step(result_text(observation) if is_result else observation_text(observation), paid, self._ended)


def _tools(session: OpenEnvSession) -> list[dict[str, Json]]:
    """The tools of the environment's MCP server; none if it has no such server."""
    with contextlib.suppress(RefusedError):
        listed = session.ask_mcp("tools/list", {})
        return [_tool_schema(tool) for tool in listed.get("tools", ())] if isinstance(listed, Mapping) else []
    return []


def _tool_schema(tool: Mapping[str, Any]) -> dict[str, Json]:
    """In the form of our own tools, where each parameter has a description, even if empty."""
    given = dict(tool.get("input_schema") or tool.get("inputSchema") or {})
    given["properties"] = {name: {"description": "", **field} for name, field in given.get("properties", {}).items()}
    return schema_of_tool({**tool, "inputSchema": given})


def _fields(action: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of an action's JSON schema that somebody must write: all but metadata and constants."""
    properties = action.get("properties", {})
    return {name: field for name, field in properties.items() if name != "metadata" and "const" not in field}


def text_field(action: Mapping[str, Any]) -> str | None:
    """The field of an action that is a text, if it has no other that must be given."""
    fields = _fields(action)
    texts = [name for name, field in fields.items() if field.get("type") == "string" and "enum" not in field]
    required = set(action.get("required", ())) & fields.keys()
    return texts[0] if len(texts) == 1 and required <= {texts[0]} else None


def step_schema(action: Mapping[str, Any]) -> dict[str, Json]:
    """The tool `step`, whose parameters are the fields of the action."""
    fields, description = _fields(action), action.get("description") or "Act in the environment."
    required = [name for name in action.get("required", ()) if name in fields]
    schema: dict[str, Any] = {"properties": fields, "required": required or False, "$defs": action.get("$defs")}
    return _tool_schema({"name": "step", "description": description, "inputSchema": schema})


def observation_text(observation: Mapping[str, Any]) -> str:
    """The text of an observation that is a single text, and otherwise all its fields as JSON. Reward, end and metadata
    are not the model's. An empty observation is an empty text."""
    fields = {name: value for name, value in observation.items() if name not in ("reward", "done", "metadata")}
    values = list(fields.values())
    one = values[0] if len(values) == 1 and isinstance(values[0], str) else fields
    return text_of(one, "an observation") if fields else ""


def result_text(observation: Mapping[str, Any]) -> str:
    """Return the result of a tool. Raises ToolError with the reason if its call has failed."""
    if observation.get("error"):
        raise ToolError(error_text(observation["error"]))
    result = observation.get("result")
    if isinstance(result, Mapping) and result.get("content"):
        result = result_of_call({**result, "isError": result.get("is_error") or result.get("isError")})
    return text_of(result, "the result of a tool")


class RefusedError(ToolError):
    """The server refuses a message and goes on. The text is for whoever wrote the message."""


class _NoSessionError(EnvironmentFailedError):
    """The server has no session for this connection, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of a server: a URL that begins with http. timeout: seconds for a connection, for each message, and for a
    free session. headers: of every connection."""

    url: str
    timeout: float
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def failed(self, why: str, remedy: str = _LOOK) -> EnvironmentFailedError:
        """The error of a server that does not do what it should."""
        return EnvironmentFailedError(f"the server of openenv:{self.url} {why}", remedy=remedy)

    def action_schema(self) -> Mapping[str, Any]:
        """JSON schema of its actions."""
        address, proxies = f"{self.url}/schema", [urllib.request.ProxyHandler({})] if self.is_here() else []
        try:
            request = urllib.request.Request(address, headers=dict(self.headers))
            with urllib.request.build_opener(*proxies).open(request, timeout=self.timeout) as answer:
                return dict(json.loads(answer.read(_LARGEST))["action"])
        except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
            raise self.failed(f"does not give the schema of its actions at {address}: {error}", _START) from error

    def is_here(self) -> bool:
        """True if the server is on this machine: proxies are for others."""
        return urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")


class OpenEnvSession:
    """One session, with its own environment on the server. Used by one thread."""

    def __init__(self, server: ServerAddress) -> None:
        self._server = server
        each = dict.fromkeys(("open_timeout", "ping_interval", "ping_timeout"), server.timeout)
        more = {**each, "close_timeout": 1, "max_size": _LARGEST, "proxy": None if server.is_here() else True}
        self._opened = contextlib.ExitStack()
        try:  # pings end the connection if nobody is there any more, also while a message is sent
            address = f"ws{server.url.removeprefix('http')}/ws"
            self._socket = self._opened.enter_context(connect(address, additional_headers=server.headers, **more))
        except (OSError, WebSocketException) as error:
            raise _NoSessionError(server.failed(f"cannot be reached: {error}").message, remedy=_START) from error

    def ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the server's answer to a message. Raises RefusedError if it refuses the message,
        EnvironmentFailedError if it has no session, does not answer in time or is gone."""
        answer = self._exchange(kind, data)
        said = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(said, dict):
            raise self._server.failed(f"answered {kind!r} with something that is not a message with data")
        if answer.get("type") != "error":
            return said
        if said.get("code") in _OF_SESSION:
            raise _NoSessionError(self._server.failed(f"has no session: {error_text(said)}").message, remedy=_MORE)
        raise RefusedError(error_text(said))

    def ask_mcp(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result of a method of MCP. Raises RefusedError as well if the environment has no MCP."""
        said = self.ask("mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if said.get("error"):
            raise RefusedError(error_text(said["error"]))
        return said.get("result")

    def close(self) -> None:
        """End the session, if it has not ended."""
        with contextlib.suppress(OSError, WebSocketException):  # it may be gone already
            self._socket.send('{"type": "close"}')
        self._opened.close()

    def _exchange(self, kind: str, data: Mapping[str, Any]) -> Any:
        try:
            with contextlib.suppress(WebSocketException):  # a server without a free session says so, and is gone
                self._socket.send(json.dumps({"type": kind, "data": data}, allow_nan=False))
            return json.loads(self._socket.recv(timeout=self._server.timeout))
        except TimeoutError as error:
            self._opened.close()
            why = f"did not answer {kind!r} in {self._server.timeout:g} seconds"
            raise self._server.failed(why, "if it is only slow, raise timeout_seconds in the options") from error
        except (OSError, WebSocketException) as error:
            raise self._server.failed(f"is gone (asked for {kind!r}): {error}") from error
        except ValueError as error:
            raise self._server.failed(f"cannot be asked for {kind!r} in JSON: {error}") from error


def begin(server: ServerAddress, first: Callable[[OpenEnvSession], Any]) -> tuple[OpenEnvSession, Any]:
    """A session, and what its first exchange returned. A server that cannot be reached, or whose sessions are all
    taken, is asked again, after pauses that grow, until `server.timeout` is over: it may be starting, and frees
    sessions a little after their connections are closed."""
    deadline, pause = time.monotonic() + server.timeout, _FIRST_PAUSE
    while True:
        try:
            session = OpenEnvSession(server)
            try:
                return session, first(session)
            except BaseException:
                session.close()
                raise
        except _NoSessionError:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def error_text(error: Any) -> str:
    """Return the server's reason for refusing a message: the fields of the action, and what is wrong with each."""
    if not isinstance(error, Mapping):
        return str(error)
    parts = [(".".join(map(str, one.get("loc", ()))), str(one.get("msg", ""))) for one in error.get("errors") or ()]
    fields = [f"{place}: {why}" if place else why for place, why in parts]
    return "; ".join(fields) or str(error.get("message", "no reason given"))
