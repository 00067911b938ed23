"""A session with a server of OpenEnv: messages over a WebSocket, each with a deadline, and its schemas over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from burnish.environments.openenv_texts import error_text
from burnish.errors import ConfigError, EnvironmentFailedError

_LARGEST = 100 * 2**20
"""Bytes of a message, as in OpenEnv's own client."""
_OF_SESSION = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Errors that end the session. All others are about one message."""
_BETWEEN_TRIES = 0.2
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class RefusedError(Exception):
    """The server refuses a message and goes on. The text is for whoever wrote the message."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is. timeout: seconds for a connection, for each message, and for a free session. token: for a
    server that asks for one."""

    url: str
    timeout: float
    token: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """For messages."""
        return f"openenv:{self.url}"

    def failed(
        self, why: str, remedy: str = "see what the server has written, and whether it still runs"
    ) -> EnvironmentFailedError:
        """The error of a server that does not do what it should."""
        return EnvironmentFailedError(f"the server of {self.name} {why}", remedy=remedy)

    def schema(self) -> Mapping[str, Any]:
        """Its schemas: action, observation, state."""
        address = f"{self._base('http')}/schema"
        # Proxies are for other machines.
        handlers = [urllib.request.ProxyHandler({})] if self._is_here() else []
        try:
            request = urllib.request.Request(address, headers=self._headers())
            with urllib.request.build_opener(*handlers).open(request, timeout=self.timeout) as answer:
                read = json.loads(answer.read(_LARGEST))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self.failed(f"does not give its schemas at {address}: {error}", _START) from error
        if not isinstance(read, dict) or not isinstance(read.get("action"), dict):
            raise self.failed(f"gives no schema of its actions at {address}", "is this a server of OpenEnv?")
        return read

    def connect(self) -> Any:
        """A WebSocket to it. Pings end the connection if nobody is there any more, also while a message is sent."""
        client = _websockets("websockets.sync.client", self.name)
        more = {"proxy": None} if self._is_here() else {}
        try:
            return client.connect(
                f"{self._base('ws')}/ws",
                open_timeout=self.timeout,
                close_timeout=1,
                ping_interval=self.timeout,
                ping_timeout=self.timeout,
                max_size=_LARGEST,
                additional_headers=self._headers(),
                **more,
            )
        except (OSError, _errors()) as error:
            raise self.failed(f"cannot be reached: {error}", _START) from error

    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def _base(self, scheme: str) -> str:
        parts = urlsplit(self.url)
        secure = "s" if parts.scheme in ("https", "wss") else ""
        return f"{scheme}{secure}://{parts.netloc}{parts.path.rstrip('/')}"

    def _is_here(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


_START = "start the server, and check the URL (the port, http or https)"


class Session:
    """One session, with an environment of its own on the server. Messages are sent one at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket = server.connect()
        self._one_at_a_time = threading.Lock()

    def ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the server answers to a message. Raises RefusedError if it refuses the message, EnvironmentFailedError
        if it has no session, does not answer in time or is gone."""
        with self._one_at_a_time:
            answer = self._exchange({"type": kind, "data": dict(data)})
        said = answer.get("data")
        if not isinstance(said, dict):
            raise self._server.failed(f"answered {kind!r} with a message without data")
        if answer.get("type") != "error":
            return said
        if said.get("code") in _OF_SESSION:
            raise _NoSessionError(f"the server of {self._server.name} has no session: {error_text(said)}", remedy=_MORE)
        raise RefusedError(error_text(said))

    def ask_mcp(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result of a method of MCP. Raises RefusedError as well if the environment has no MCP."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)}
        said = self.ask("mcp", request)
        error = said.get("error")
        if error:
            raise RefusedError(str(error.get("message", error)) if isinstance(error, Mapping) else str(error))
        return said.get("result")

    def close(self) -> None:
        """End the session, if it has not ended."""
        with contextlib.suppress(OSError, _errors()):  # it may be gone already
            self._socket.send(json.dumps({"type": "close"}))
        self._socket.close()

    def _exchange(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = message["type"]
        try:
            text = json.dumps(message, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._server.failed(f"cannot be sent {kind!r}: {error}", "rows must be plain data") from error
        try:
            with contextlib.suppress(_errors()):  # a server without a free session says so, and is gone
                self._socket.send(text)
            answer = json.loads(self._socket.recv(timeout=self._server.timeout))
        except TimeoutError as error:
            self._socket.close()
            why = f"did not answer {kind!r} in {self._server.timeout:g} seconds"
            raise self._server.failed(why, "raise timeout_seconds in the options, if it is only slow") from error
        except (OSError, _errors()) as error:
            raise self._server.failed(f"is gone (asked for {kind!r}): {error}") from error
        except ValueError as error:
            raise self._server.failed(f"answered {kind!r} with a text that is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise self._server.failed(f"answered {kind!r} with something that is not a message")
        return answer


def begin(server: Server, first: Callable[[Session], Any]) -> tuple[Session, Any]:
    """A session, and what its first exchange returned. A server whose sessions are all taken is asked again until
    `server.timeout` is over: it frees them a little after their connections are closed."""
    deadline = time.monotonic() + server.timeout
    while True:
        session = Session(server)
        try:
            return session, first(session)
        except _NoSessionError:
            session.close()
            if time.monotonic() + _BETWEEN_TRIES > deadline:
                raise
        except BaseException:
            session.close()
            raise
        time.sleep(_BETWEEN_TRIES)


class _NoSessionError(EnvironmentFailedError):
    """The server has no session for this connection."""


_MORE = "raise max_concurrent_envs where the server is made, to as many conversations as are held at once"


def _websockets(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{name} needs the package websockets", remedy="pip install 'burnish[openenv]'") from error


def _errors() -> Any:
    return _websockets("websockets.exceptions", "openenv:").WebSocketException
