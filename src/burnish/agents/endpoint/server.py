"""The endpoint over HTTP. The only file of this room that imports starlette and uvicorn.

Clients are not trusted: the size of a request, the time for it and the number of waiting requests are bounded. Only
`application/json` is read and, without a key, only under a name of this machine, so that a page in a browser cannot
send requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnish.agents.endpoint.answers import Body, Reply, error_body, events, model_body, whole_body
from burnish.agents.endpoint.request_queue import Desk, Order
from burnish.agents.endpoint.requests import (
    ChatRequest,
    RewardCall,
    Terms,
    TurnRequest,
    read_chat,
    read_completion,
    read_reward,
    read_tokens,
)
from burnish.agents.endpoint.responses import Response as ResponseForm
from burnish.agents.endpoint.responses import read_response
from burnish.errors import RolloutError, needing
from burnish.outside.listening import (
    LOOPBACK,
    UVICORN,
    RefusedError,
    check_secret,
    gone,
    guarded,
    listening,
    read_body,
    url_of,
)

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_START_SECONDS = 30.0
_END_SECONDS = 10.0
_BODY_BYTES, _TOKEN_BYTES = 1 << 20, 64
"""Limit on the size of a request: a fixed part, and a part for each token of the context."""

Read = Callable[[Mapping[str, Any], Terms], TurnRequest | RewardCall]
Write = Callable[[Sequence[Reply]], tuple[Body, Iterator[str]]]
"""The answer to a request as an object, and as a stream of events."""


@dataclass(frozen=True, slots=True)
class Service:
    """Access and limits of a server. key: of its clients, None if everyone on this machine may send requests. waiting:
    requests that may wait at a time. body_bytes, body_seconds: of a request. answer_seconds: for a turn, waiting
    included."""

    key: str | None = None
    waiting: int = 4_096
    body_bytes: int = 1 << 25
    body_seconds: float = 30.0
    answer_seconds: float = 3_600.0


def application(desk: Desk, service: Service) -> Starlette:
    """The server as an ASGI application. RolloutError if starlette is not installed."""
    with needing("'burnish[serve]'", RolloutError, "a server for agents needs starlette and uvicorn"):
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    counter = _Counter(desk, service)
    posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/v1/chat/completions": counter.turn(read_chat, _as_completion),
        "/v1/completions": counter.turn(read_completion, _as_completion),
        "/v1/responses": counter.turn(read_response, _as_response),
        "/inference/v1/generate": counter.turn(read_tokens, _as_completion),
        "/reward": counter.turn(lambda asked, terms: read_reward(asked), _as_completion),
        "/v1/reward": counter.turn(lambda asked, terms: read_reward(asked), _as_completion),
    }
    routes = [Route("/health", counter.health, methods=["GET"])]
    for start in ("", "/t/{trajectory}"):
        routes += [Route(start + path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
        routes += [Route(f"{start}/v1/models{name}", counter.models, methods=["GET"]) for name in ("", "/{name:path}")]

    def refuse(error: RefusedError) -> Response:
        return _json(error_body(error), error.status, error.headers)

    async def refused(request: Request, error: Exception) -> Response:
        return refuse(error if isinstance(error, RefusedError) else RefusedError(400, "it is nested too deeply"))

    async def astray(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reason = f"there is no {request.method} {request.scope['path']} here"
        return refuse(RefusedError(error.status_code, reason, headers=error.headers))

    handlers = {RefusedError: refused, RecursionError: refused, HTTPException: astray}
    return guarded(routes, service.key, refuse, {"/health"}, handlers)


class ServerThread:
    """The server in its own thread, at the address `url`.

    host: the name under which `listener` was opened. Without a listener it takes a free port.
    RolloutError for an address of other machines without a key.
    """

    def __init__(
        self, desk: Desk, service: Service, *, host: str = LOOPBACK[0], listener: socket.socket | None = None
    ) -> None:
        check_address(host, service.key)
        self._desk = desk
        self._open = contextlib.ExitStack()
        if listener is None:
            listener = self._open.enter_context(listening(host, 0))
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
        """Refuse waiting requests, and end. Idempotent."""
        self._desk.close()
        self._server.should_exit = True
        self._thread.join(_END_SECONDS)
        self._open.close()


def check_address(host: str, key: str | None) -> None:
    """Raise RolloutError for an address that other machines can reach without a key."""
    check_secret(host, key, RolloutError, f"a model on {host} would answer", "--key-variable")


class _Counter:
    """Handler of requests: queues them as orders, and returns their answers."""

    def __init__(self, desk: Desk, service: Service) -> None:
        self._desk = desk
        self._service = service
        self._waiting = 0

    def turn(self, read: Read, write: Write) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint whose requests wait for the engine."""
        from starlette.responses import StreamingResponse

        async def endpoint(request: Request) -> Response:
            name = self._name(request)
            terms = self._terms(name)
            most = min(self._service.body_bytes, _BODY_BYTES + _TOKEN_BYTES * terms.context)
            body = await read_body(request, most=most, seconds=self._service.body_seconds)
            asked = read(body, terms)
            samples = 1 if isinstance(asked, RewardCall) else asked.wish.samples
            orders = [Order(name, asked, sample) for sample in range(samples)]
            replies = [reply for reply in await self._answered(orders, request) if reply is not None]
            if not replies:
                return _json({"ok": True})
            whole, parts = write(replies)
            headers = replies[0].headers
            if replies[0].asked.wish.stream:
                return StreamingResponse(parts, headers=headers, media_type="text/event-stream")
            return _json(whole, headers=headers)

        return endpoint

    async def models(self, request: Request) -> Response:
        terms = self._terms(self._name(request))
        card, name = model_body(terms.model, terms.context), request.path_params.get("name")
        if name not in (None, terms.model):
            raise RefusedError(404, f"there is no model {name!r:.80} here", code="model_not_found", param="model")
        return _json({"object": "list", "data": [card]} if name is None else card)

    async def health(self, request: Request) -> Response:
        return _json({"status": "ending" if self._desk.is_closed else "ok"}, 503 if self._desk.is_closed else 200)

    def _name(self, request: Request) -> str:
        return str(request.path_params.get("trajectory", ""))

    def _terms(self, name: str) -> Terms:
        terms = self._desk.find(name)
        if terms is None:
            raise RefusedError(404, "there is no such trajectory, or it is over", code="trajectory_not_found")
        return terms

    async def _answered(self, orders: Sequence[Order], request: Request) -> list[Reply | None]:
        """Wait for the answers of the engine's thread. If the client disconnects, its orders are withdrawn."""
        if self._waiting + len(orders) > self._service.waiting:
            raise RefusedError(503, f"{self._service.waiting:,} requests are waiting already")
        self._waiting += len(orders)
        answers = asyncio.gather(*(asyncio.wrap_future(order.answer) for order in orders))
        left = asyncio.ensure_future(gone(request))
        try:
            self._desk.place(*orders)
            both: set[asyncio.Future[Any]] = {answers, left}
            await asyncio.wait(both, timeout=self._service.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
            if answers.done():
                replies = answers.result()
                for reply in replies:
                    _check_fit(reply)
                return replies
            answers.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await answers
            if left.done():
                raise RefusedError(400, "the client has gone")
            raise RefusedError(503, f"no turn within {self._service.answer_seconds:g} s")
        finally:
            self._waiting -= len(orders)
            left.cancel()
            for order in orders:
                order.withdraw()


def _json(body: Body, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a response in ASCII, because it may repeat half a character that the client has sent."""
    from starlette.responses import Response

    return Response(json.dumps(body), status, headers, "application/json")


def _check_fit(reply: Reply | None) -> None:
    """Raise RefusedError for an answer that does not meet its request's demands. A truncated one says so by itself."""
    if reply is not None and isinstance(reply.asked, ChatRequest) and reply.finish_reason != "length":
        reply.asked.wish.demands.check(reply.said.message)


def _as_completion(replies: Sequence[Reply]) -> tuple[Body, Iterator[str]]:
    return whole_body(replies), events(replies)


def _as_response(replies: Sequence[Reply]) -> tuple[Body, Iterator[str]]:
    response = ResponseForm(replies[0])
    return response.body(), response.events()


def _uvicorn(app: Starlette, service: Service) -> uvicorn.Server:
    with needing("'burnish[serve]'", RolloutError, "a server for agents needs starlette and uvicorn"):
        import uvicorn
    connections = 2 * service.waiting + 64  # requests get a better answer before
    return uvicorn.Server(uvicorn.Config(app, limit_concurrency=connections, **UVICORN))
