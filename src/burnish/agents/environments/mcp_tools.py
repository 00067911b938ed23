"""Tools of MCP servers (Model Context Protocol, https://modelcontextprotocol.io), by its SDK, which is optional.

One event loop on one thread talks to all servers. Each has one session, which all conversations share: every
conversation sees what a server keeps from one call to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from burnish.agents.tools.calls import ToolError
from burnish.agents.tools.checking import function_of
from burnish.config.secrets import hidden_name, masked_command
from burnish.errors import ConfigError, needing
from burnish.outside.supervise import tied
from burnish.types import Json

if TYPE_CHECKING:
    from mcp import Client

START_SECONDS = 60.0
"""For a server to start and to list its tools: `npx` may have to fetch it first."""
_CLOSE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0
_MOST_PAGES = 100
_MOST_REFERENCES = 8
"""How deep `$ref` may lead; a schema that refers to itself is cut there."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server: a `command` that speaks MCP over its standard input and output, or the `url` of one that speaks
    streamable HTTP.

    environment: names of variables that the command gets, besides PATH, HOME and the like. token_variable: name of the
    variable that holds the token for the URL. Raises ConfigError for what does not fit together, and for variables that
    are not set.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    environment: tuple[str, ...] = ()
    token_variable: str | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == (self.url is not None):
            raise ConfigError("an mcp entry of the tools needs either command or url")
        if self.url is not None and (urlsplit(self.url).scheme not in ("http", "https") or "@" in self.url):
            raise ConfigError(
                f"the address of an MCP server is {self.url.rpartition('@')[2]!r}",
                remedy="give http://HOST:PORT/mcp or https://HOST/mcp, and a token by token_variable",
            )
        if (self.command and self.token_variable) or (self.url and self.environment):
            raise ConfigError(
                f"the MCP server {self.name} has a field of another kind of server",
                remedy="environment is for command, token_variable for url",
            )
        for variable in (*self.environment, *filter(None, [self.token_variable])):
            if not os.environ.get(variable):
                raise ConfigError(
                    f"the environment variable {hidden_name(variable)}, of the MCP server {self.name}, is not set"
                )

    @property
    def name(self) -> str:
        """For messages: the command's beginning, or the address without its query, which may hold a secret."""
        if self.url is None:
            return " ".join(map(str, masked_command(self.command)))[:80]
        return urlsplit(self.url)._replace(query="", fragment="").geturl()


class McpTools:
    """Serves the tools of some servers (`burnish.agents.tools.calls.ServedTools`).

    All servers are started, or connected to, and asked for their tools by the constructor. names: of the tools of each
    server, in the order of the servers. Raises ConfigError if the SDK is not installed, if a server cannot be reached,
    and if two have a tool of the same name.
    """

    def __init__(self, servers: Sequence[McpServer], *, start_seconds: float = START_SECONDS) -> None:
        _check_sdk()
        self._connections = [_Connection(server) for server in servers]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._closing = threading.Lock()
        self._owners: dict[str, _Connection] = {}
        self.schemas: tuple[Mapping[str, Json], ...] = ()
        self.names: tuple[tuple[str, ...], ...] = ()
        try:
            listed = [self._submit(connection.schemas()) for connection in self._connections]
            for connection, schemas in zip(self._connections, listed, strict=True):
                self._add(connection, schemas, start_seconds)
        except BaseException:
            self.close()
            raise

    def call(self, conversation: Hashable, name: str, arguments: Mapping[str, Json], seconds: float) -> object:
        """The text of the result. A connection that is lost is made again once, and the call repeated.

        Raises ToolError with what the server says about a call that failed, ConnectionError if the server is lost, and
        TimeoutError.
        """
        if name not in self._owners:
            raise ToolError(f"there is no tool {name!r}")
        if self._loop.is_closed():
            raise ConnectionError("the MCP servers have been left")
        connection = self._owners[name]
        answer = self._submit(connection.call(name, dict(arguments)))
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise TimeoutError(f"the MCP server gave no answer to {name} within {seconds:g} s") from None
        finally:
            answer.cancel()  # what nobody waits for any more

    def end(self, conversation: Hashable) -> None:
        """Nothing is kept for one conversation."""

    def close(self) -> None:
        """End the servers that were started, and all connections. Idempotent."""
        with self._closing:
            if self._loop.is_closed():
                return
            leaving = [self._submit(connection.leave()) for connection in self._connections]
            for one in leaving:
                with contextlib.suppress(Exception):  # boundary: a server that does not end is left to its own
                    one.result(_CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()

    def _submit(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _add(self, connection: _Connection, listed: Future[list[dict[str, Json]]], seconds: float) -> None:
        try:
            schemas = listed.result(seconds)
        except TimeoutError:
            listed.cancel()
            raise connection.unusable(f"it did not list its tools within {seconds:g} s") from None
        except Exception as error:  # boundary: the SDK has many ways to fail
            raise connection.unusable(_reason(error)) from error
        names = tuple(str(function_of(schema)["name"]) for schema in schemas)
        for name in names:
            other = self._owners.setdefault(name, connection)
            if other is not connection:
                raise ConfigError(
                    f"two MCP servers have a tool named {name!r}: {other.name} and {connection.name}",
                    remedy="leave one of them out: a model calls tools by this name alone",
                )
        self.schemas += tuple(schemas)
        self.names += (names,)


class _Connection:
    """The session with one server. Everything but `name` and `unusable` runs on the loop's thread."""

    def __init__(self, server: McpServer) -> None:
        self.name = server.name
        self._server = server
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  closed by `leave`
        self._connecting = asyncio.Lock()
        self._client: Client | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def schemas(self) -> list[dict[str, Json]]:
        """Of all tools of the server."""
        client, found, cursor = await self._connected(), [], None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += [schema_of_tool(tool.model_dump(mode="json", by_alias=True)) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, arguments: dict[str, Json]) -> object:
        """Return the result of the tool. Raises ToolError and ConnectionError."""
        from mcp import MCPError

        client = await self._connected()
        for attempt in (1, 2):
            try:
                return result_of_call((await client.call_tool(name, arguments)).model_dump(mode="json", by_alias=True))
            except MCPError as error:
                if not self._is_lost(client, error):
                    raise ToolError(error.message) from error
            if attempt == 1:
                client = await self._connected(lost=client)
        raise ConnectionError(f"the MCP server {self.name} ends the connection when {name} is called")

    async def leave(self) -> None:
        """End the session, and the server if it was started."""
        keeper, self._client, self._keeper = self._keeper, None, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        self._said.close()

    def unusable(self, reason: str) -> ConfigError:
        lines: list[str] = []
        if not self._said.closed:
            self._said.seek(0)
            lines = self._said.read().strip().splitlines()
        said = f" (its last words: {lines[-1][:300]})" if lines else ""
        return ConfigError(
            f"the MCP server {self.name} cannot be used: {reason}{said}",
            remedy="check that it starts by itself, or that its address is right",
        )

    def _is_lost(self, client: Client, error: Any) -> bool:
        """Return whether the connection has ended, and not only this call."""
        from mcp_types import CONNECTION_CLOSED

        replaced = client is not self._client or self._keeper is None or self._keeper.done()
        return replaced or error.code == CONNECTION_CLOSED or error.message == "Session terminated"

    async def _connected(self, lost: Client | None = None) -> Client:
        """The client, which is made anew if it is the one that was lost. Raises ConnectionError."""
        async with self._connecting:  # others wait, and find it
            if self._client is None or self._client is lost or self._keeper is None or self._keeper.done():
                if self._keeper is not None:
                    self._keeper.cancel()
                    await asyncio.wait([self._keeper])
                ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._client, self._keeper = None, asyncio.create_task(self._keep(ready))
                try:
                    self._client = await asyncio.shield(ready)
                except asyncio.CancelledError:  # nobody waits for this connection any more
                    self._keeper.cancel()
                    raise
                except Exception as error:  # boundary: the SDK has many ways to fail
                    raise ConnectionError(f"the MCP server {self.name}: {_reason(error)}") from error
            return self._client

    async def _keep(self, ready: asyncio.Future[Client]) -> None:
        """Hold the connection open until this task is cancelled. It has to be left by the task that has entered it."""
        try:
            async with self._open() as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001  boundary: a lost connection raises here, and calls find it lost
            if not ready.done():
                ready.set_exception(ConnectionError("was left") if isinstance(error, asyncio.CancelledError) else error)
                ready.exception()  # nobody may be waiting

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters, stdio_client

        server = self._server
        if server.url is None:
            given = {name: os.environ[name] for name in server.environment}
            program, *arguments = tied(server.command)  # the SDK would leave a busy server behind
            start = StdioServerParameters(command=program, args=arguments, env=given)
            async with Client(stdio_client(start, errlog=self._said)) as client:
                yield client
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        token = None if server.token_variable is None else os.environ[server.token_variable].strip()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS)  # each call has its own deadline
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            yield client


def schema_of_tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    """The schema of a tool as a server lists it (`name`, `description`, `inputSchema`), as all our tools have it.

    Titles, which repeat the names, are left out, and references within the schema are replaced by what they mean.
    """
    given = tool.get("inputSchema")
    given = given if isinstance(given, dict) else {}
    definitions = given.get("$defs") or given.get("definitions")
    kept = [key for key in ("properties", "required", "additionalProperties") if given.get(key, False) is not False]
    parameters = _plain({key: given[key] for key in kept}, definitions)
    assert isinstance(parameters, dict)
    inner: dict[str, Json] = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": {"type": "object", "properties": {}, **parameters},
    }
    return {"type": "function", "function": inner}


def result_of_call(result: Mapping[str, Json]) -> object:
    """The texts of a result, one below the other, with the kinds of what is not text in brackets.

    The result's structured content stands in for a result without any other. Raises ToolError for one that is an error.
    """
    content = result.get("content")
    parts = [_text_of(block) for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    text = "\n".join(parts)
    if result.get("isError"):
        raise ToolError(text or "the tool failed, and does not say why")
    structured = result.get("structuredContent")
    return structured if not parts and structured is not None else text


def _text_of(block: Mapping[str, Json]) -> str:
    kind = str(block.get("type"))
    resource = block.get("resource")
    inner = resource if isinstance(resource, dict) else block
    if isinstance(inner.get("text"), str):
        return str(inner["text"])
    named = inner.get("uri") or inner.get("mimeType")
    return f"[{kind}: {named}]" if named else f"[{kind}]"


def _plain(schema: Json, definitions: Json, within: tuple[str, ...] = ()) -> Json:
    """A schema without titles and references. A property may be called `title`: its value is not text. within: the
    references that lead here; what refers to itself is written twice, and without the reference then."""
    if isinstance(schema, list):
        return [_plain(item, definitions, within) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        meant = definitions.get(reference.rpartition("/")[2]) if isinstance(definitions, dict) else None
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(meant, dict) or within.count(reference) > 1 or len(within) >= _MOST_REFERENCES:
            return _plain(rest, definitions, within)
        return _plain({**meant, **rest}, definitions, (*within, reference))
    return {
        key: _plain(value, definitions, within)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def _reason(error: BaseException) -> str:
    """The innermost of grouped errors, which task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConnectionError) and isinstance(error.__cause__, Exception):
        return _reason(error.__cause__)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _check_sdk() -> None:
    with needing("'burnish[mcp]'", ConfigError, "tools of MCP servers need the package mcp, version 2"):
        from mcp import Client  # noqa: F401
