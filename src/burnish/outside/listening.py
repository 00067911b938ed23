"""Sockets of this project's servers, who may ask them, and what is read from them."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.errors import BurnishError, ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses at which nobody but this machine itself can ask."""
UVICORN: Mapping[str, Any] = {
    "lifespan": "off",  # nothing is done when an application starts and ends
    "http": "h11",  # what is refused is the same, whichever parsers are installed
    "ws": "none",
    "proxy_headers": False,
    "access_log": False,
    "log_level": "error",  # odd requests from strangers are not worth reporting
    "timeout_graceful_shutdown": 5,
}
"""Settings of all servers."""


def check_secret(host: str, secret: str | None, kind: type[BurnishError], would: str, option: str) -> None:
    """Raise `kind` for an address that other machines can reach without a secret. would: what a server there does for
    them. option: of the command, for the secret."""
    if host not in LOOPBACK and secret is None:
        raise kind(
            f"{would} everyone who can reach this machine",
            remedy=f"put a secret into an environment variable and name it with {option}, or leave out --host",
        )


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; port 0 takes a free one. ConfigError if the address cannot be had."""
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, address = min((family, address) for family, *_, address in found)  # IPv4 first
            # With its protocol named, asyncio sends each answer at once (TCP_NODELAY).
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}, port {port}: {error.strerror}", remedy="choose another address or port"
            ) from error
        listener.listen(1_024)
        yield listener


def url_of(listener: socket.socket, host: str) -> str:
    """Return the URL of a listener, under the name of the host that it was made for."""
    return f"http://{_bracketed(host)}:{listener.getsockname()[1]}"


class RefusedError(Exception):
    """A request that is not served. status: of HTTP. code, param: as in OpenAI's errors. headers: of the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


def wrong(param: str, message: str) -> RefusedError:
    """A field of a request that cannot have its value."""
    return RefusedError(400, message, param=param)


def ending() -> RefusedError:
    """A server that is ending answers nothing more."""
    return RefusedError(503, "this server is ending")


async def read_body(request: Request, *, most: int, seconds: float, unreadable: int = 400) -> dict[str, Any]:
    """The JSON object of a request. RefusedError, with the status `unreadable`, if it is none, and if it is too large
    or too slow to arrive."""
    from starlette.requests import ClientDisconnect

    # A page in a browser may send other types without asking whether it may.
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "the content type has to be application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise RefusedError(413, f"a request may have {most:,} bytes", code="context_length_exceeded")
        asked = json.loads(body)
    except TimeoutError as error:
        raise RefusedError(408, f"the request body did not arrive within {seconds:g} s") from error
    except ClientDisconnect as error:
        raise RefusedError(400, "the client has gone") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(unreadable, "the request is not JSON") from error
    if not isinstance(asked, dict):
        raise RefusedError(unreadable, "the request is not a JSON object")
    return asked


async def gone(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Admission:
    """An ASGI application in front of another one, which only those reach who may ask: whoever knows the secret or, if
    there is none, programs on this machine.

    open_paths: what needs no secret. refuse: answers with an error.
    """

    app: ASGIApp
    secret: str | None
    refuse: Callable[[RefusedError], ASGIApp]
    open_paths: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # none of ours speaks it
            await send({"type": "websocket.close", "code": 1008})
            return
        app = self.app if scope["type"] == "lifespan" else self._refused(scope) or self.app
        await app(scope, receive, send)

    def _refused(self, scope: Scope) -> ASGIApp | None:
        if self.secret is None:
            reason = _why_foreign(scope)
            return self.refuse(RefusedError(403, reason)) if reason else None
        given = b", ".join(_values(scope, b"authorization"))
        if scope["path"] in self.open_paths or hmac.compare_digest(given, f"Bearer {self.secret}".encode()):
            return None
        headers = {"WWW-Authenticate": "Bearer"}
        return self.refuse(RefusedError(401, "the key is missing or wrong", code="invalid_api_key", headers=headers))


def guarded(
    routes: Sequence[BaseRoute],
    secret: str | None,
    refuse: Callable[[RefusedError], ASGIApp],
    open_paths: Collection[str],
    handlers: Mapping[Any, Callable[..., Any]] | None = None,
) -> Starlette:
    """The application of a server: its routes behind `Admission`. handlers: of exceptions."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    admission = Middleware(Admission, secret=secret, refuse=refuse, open_paths=open_paths)
    app = Starlette(routes=routes, middleware=[admission], exception_handlers=handlers)
    app.router.redirect_slashes = False  # to an address that the client has named
    return app


def _why_foreign(scope: Mapping[str, Any]) -> str:
    """Why a request may have been made by a page in a browser; empty if it was not.

    A page of another site names its origin, and one whose own name was made to lead here (DNS rebinding) names itself
    as host. So both are compared byte by byte: a URL made of them would hide what is odd about them.
    """
    port = (scope.get("server") or ("", None))[1]
    ours = [f"{_bracketed(name)}:{port}" for name in LOOPBACK]
    ours += [_bracketed(name) for name in LOOPBACK if port == 80]
    hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
    if len(hosts) != 1 or hosts[0] not in [name.encode() for name in ours]:
        reason = f"the header Host has to be {' or '.join(ours)}, and appear once"
    elif origins and (len(origins) > 1 or origins[0] not in [f"http://{name}".encode() for name in ours]):
        reason = "requests from pages of other origins are refused"
    elif any(site not in (b"same-origin", b"none") for site in _values(scope, b"sec-fetch-site")):
        reason = "requests from pages of other sites are refused"
    elif not scope["path"].startswith("/"):
        reason = "the target of a request has to be a path"
    else:
        return ""
    return f"this server asks for no key, so it answers only this machine: {reason}"


def _values(scope: Mapping[str, Any], name: bytes) -> list[bytes]:
    return [value for given, value in scope["headers"] if given == name]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
