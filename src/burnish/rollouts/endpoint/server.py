"""The endpoint over HTTP. The only file here that imports starlette and uvicorn.

What comes in is not trusted: the size of a request, the time for it and the number of those that wait are bounded. Only
`application/json` is read, and without a key only under a name of this machine, so that a page in a browser cannot ask
for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.errors import RolloutError
from burnish.outside.listening import LOOPBACK, listening, url_of
from burnish.rollouts.endpoint.answers import Reply, error_body, models_body
from burnish.rollouts.endpoint.desk import Desk, Order
from burnish.rollouts.endpoint.requests import (
    RefusedError,
    RewardCall,
    Terms,
    TurnRequest,
    read_chat,
    read_completion,
    read_reward,
    read_tokens,
)

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_START_SECONDS = 30.0
_END_SECONDS = 10.0
_MISSING = "pip install 'burnish[serve]'"

Read = Callable[[Mapping[str, Any], Terms], TurnRequest | RewardCall]


@dataclass(frozen=True, slots=True)
class Service:
    """What a server allows. key: of its clients, None if everyone on this machine may ask. waiting: requests that may
    wait at a time. body_bytes, body_seconds: of a request. answer_seconds: for a turn, waiting included."""

    key: str | None = None
    waiting: int = 4_096
    body_bytes: int = 1 << 25
    body_seconds: float = 30.0
    answer_seconds: float = 3_600.0


def application(desk: Desk, service: Service) -> Starlette:
    """The server as an ASGI application. RolloutError where starlette is not installed."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise _missing() from error
    counter = _Counter(desk, service)
    posts: dict[str, Read] = {
        "/v1/chat/completions": read_chat,
        "/v1/completions": read_completion,
        "/inference/v1/generate": read_tokens,
        "/reward": lambda asked, terms: read_reward(asked),
        "/v1/reward": lambda asked, terms: read_reward(asked),
    }
    routes = []
    for start in ("", "/t/{trajectory}"):
        for path, read in posts.items():
            routes.append(Route(start + path, counter.guarded(counter.turn(read)), methods=["POST"]))
        routes.append(Route(start + "/v1/models", counter.guarded(counter.models), methods=["GET"]))
    return Starlette(routes=routes)


class ServerThread:
    """The server in a thread of its own. `url` is where it listens; port 0 takes a free one.

    RolloutError for another address than this machine's own without a key, ConfigError if the address cannot be had.
    """

    def __init__(self, desk: Desk, service: Service, *, host: str = LOOPBACK[0], port: int = 0) -> None:
        check_address(host, service.key)
        self._desk = desk
        self._open = contextlib.ExitStack()
        listener = self._open.enter_context(listening(host, port))
        self.url = url_of(listener, host)
        try:
            self._server = _uvicorn(application(desk, service), service)
        except BaseException:
            self._open.close()
            raise
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="endpoint", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise RolloutError("the server for agents has not started", remedy="look at what it has printed")
            time.sleep(0.005)

    def close(self) -> None:
        """Refuse what waits, and end. Idempotent."""
        self._desk.close()
        self._server.should_exit = True
        self._thread.join(_END_SECONDS)
        self._open.close()


def check_address(host: str, key: str | None) -> None:
    """RolloutError for another address than this machine's own without a key."""
    if host not in LOOPBACK and key is None:
        raise RolloutError(
            f"a model on {host} would answer everyone who can reach this machine",
            remedy="put a secret into an environment variable and name it with --key-variable, or leave out --host",
        )


class _Counter:
    """Takes requests, and brings their answers."""

    def __init__(self, desk: Desk, service: Service) -> None:
        self._desk = desk
        self._service = service
        self._waiting = 0

    def guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint with its errors in OpenAI's form."""
        from starlette.responses import JSONResponse

        async def endpoint(request: Request) -> Response:
            try:
                self._admit(request)
                return await answer(request)
            except RefusedError as error:
                headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
                return JSONResponse(error_body(error), error.status, headers)

        return endpoint

    def turn(self, read: Read) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint whose requests wait for the engine."""
        from starlette.responses import JSONResponse, StreamingResponse

        async def endpoint(request: Request) -> Response:
            name = self._name(request)
            terms = self._terms(name)
            order = Order(name, read(await self._body(request), terms))
            reply = await self._answered(order, request)
            if reply is None:
                return JSONResponse({"ok": True})
            if reply.asked.wish.stream:
                return StreamingResponse(_parts(reply), headers=reply.headers, media_type="text/event-stream")
            return JSONResponse(reply.body(), headers=reply.headers)

        return endpoint

    async def models(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        terms = self._terms(self._name(request))
        return JSONResponse(models_body(terms.model, terms.context))

    def _name(self, request: Request) -> str:
        return str(request.path_params.get("trajectory", ""))

    def _terms(self, name: str) -> Terms:
        terms = self._desk.find(name)
        if terms is None:
            raise RefusedError(404, "there is no such trajectory, or it is over", code="trajectory_not_found")
        return terms

    def _admit(self, request: Request) -> None:
        """RefusedError for a missing or wrong key or, on a server without one, a Host that is not a loopback name."""
        key = self._service.key
        if key is None:
            if request.url.hostname not in LOOPBACK:
                raise RefusedError(403, f"without a key this server is only {' or '.join(LOOPBACK)}")
            return
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {key}".encode()):
            raise RefusedError(401, "the API key is missing or wrong", code="invalid_api_key")

    async def _body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request. RefusedError if it is none, too large, or too slow to arrive."""
        if request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise RefusedError(415, "the content type has to be application/json")
        body, seconds = bytearray(), self._service.body_seconds
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > self._service.body_bytes:
                        raise RefusedError(413, f"a request may have {self._service.body_bytes:,} bytes")
        except TimeoutError as error:
            raise RefusedError(408, f"the request body did not arrive within {seconds:g} s") from error
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, "the request is not JSON") from error
        if not isinstance(asked, dict):
            raise RefusedError(400, "the request is not a JSON object")
        return asked

    async def _answered(self, order: Order, request: Request) -> Reply | None:
        """What the engine's thread answers. A client that goes away takes its order with it, unless it is being
        sampled."""
        if self._waiting >= self._service.waiting:
            raise RefusedError(503, f"{self._service.waiting:,} requests are waiting already")
        self._waiting += 1
        answer = asyncio.wrap_future(order.answer)
        gone = asyncio.ensure_future(_gone(request))
        try:
            self._desk.place(order)
            both: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(both, timeout=self._service.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            order.answer.cancel()
            if gone.done():
                raise RefusedError(400, "the client has gone")
            raise RefusedError(503, f"no turn within {self._service.answer_seconds:g} s")
        finally:
            self._waiting -= 1
            gone.cancel()


async def _gone(request: Request) -> None:
    """Until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(reply: Reply) -> AsyncIterator[str]:
    for event in reply.events():
        yield event


def _uvicorn(app: Starlette, service: Service) -> uvicorn.Server:
    try:
        import uvicorn
    except ImportError as error:
        raise _missing() from error
    return uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            log_level="warning",
            lifespan="off",
            limit_concurrency=2 * service.waiting + 64,  # connections: requests get a better answer before
            timeout_graceful_shutdown=5,
        )
    )


def _missing() -> RolloutError:
    return RolloutError("a server for agents needs starlette and uvicorn", remedy=_MISSING)
