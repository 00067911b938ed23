"""The board over HTTP. The only file of this room that imports starlette and uvicorn.

Pages of other sites cannot ask: requests pass `Admission`, and what changes something has to be JSON. The page itself
holds no data, so it needs no key. No text of a run becomes markup, and the page may load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.board.answers import Board, Query
from burnish.errors import BurnishError, ConfigError, needing
from burnish.outside.listening import UVICORN, RefusedError, check_secret, guarded, read_body
from burnish.types import Json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_FILES = [
    "page.css",
    "uplot/uPlot.min.css",
    "board.css",
    "uplot/uPlot.iife.min.js",
    "shared.js",
    "charts.js",
    "timeline.js",
    "board.js",
]
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGES = {"/": "board.html", **{f"/{name}": name for name in _FILES}}
"""Path -> file of `page`. There are no other files to be had."""
_UPDATE_SECONDS, _AGING_SECONDS = 1.0, 5.0
"""Time between updates, and between them while nothing changes: the age of the last step still grows."""
_READING_SECONDS, _ALL_READ = 0.15, 0.99
"""Time between updates until so much of every file was read; the rest may be a line that is being written."""
_BODY_BYTES, _BODY_SECONDS = 1 << 16, 10.0

Answer = Callable[[Query], object]
Endpoint = Callable[["Request"], Awaitable["Response"]]


def check_address(host: str, key: str | None) -> None:
    """Raise ConfigError for an address that other machines can reach without a key."""
    check_secret(host, key, ConfigError, f"a board on {host} would show these runs to", "--key-variable")


def application(board: Board, key: str | None = None, ended: Callable[[], bool] = lambda: False) -> Starlette:
    """Make the board's ASGI application. `ended`: the server is to stop, so streams of events end. ConfigError if
    starlette is not installed."""
    with needing("'burnish[serve]'", ConfigError, "the board needs starlette and uvicorn"):
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    gets: dict[str, Answer] = {
        "runs": board.overview,
        "charts": board.charts,
        "points": board.points,
        "run": board.run,
        "timeline": board.timeline,
        "configurations": board.configurations,
        "pictures": board.pictures,
        "groups": board.groups,
        "group": board.group,
        "prompt": board.prompt,
    }
    posts = {"note": board.note, "request": board.request}
    routes = [Route(path, _file(name), methods=["GET"]) for path, name in _PAGES.items()]
    routes += [Route(f"/api/{name}", _get(answer), methods=["GET"]) for name, answer in gets.items()]
    routes += [Route(f"/api/{name}", _post(act), methods=["POST"]) for name, act in posts.items()]
    routes += [Route("/api/export", _export(board), methods=["GET"]), Route("/api/events", _events(board, ended))]

    def refuse(error: RefusedError) -> Response:
        return _json({"error": str(error)}, error.status, error.headers)

    async def refused(request: Request, error: Exception) -> Response:
        return refuse(error if isinstance(error, RefusedError) else RefusedError(422, str(error)))

    async def astray(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refuse(RefusedError(error.status_code, "there is no such page here", headers=error.headers))

    handlers = {RefusedError: refused, BurnishError: refused, HTTPException: astray}
    return guarded(routes, key, refuse, set(_PAGES), handlers)


def serve(board: Board, listener: socket.socket, key: str | None = None) -> None:
    """Answer until Ctrl-C. ConfigError if uvicorn is not installed."""
    with needing("'burnish[serve]'", ConfigError, "the board needs starlette and uvicorn"):
        import uvicorn
    app = application(board, key, lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, **UVICORN))
    server.run(sockets=[listener])


def _file(name: str) -> Endpoint:
    content, kind = files("burnish.board").joinpath("page", name).read_bytes(), _TYPES[Path(name).suffix]

    async def endpoint(request: Request) -> Response:
        from starlette.responses import Response

        return Response(content, headers=_HEADERS, media_type=kind)

    return endpoint


def _get(answer: Answer) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return _json(await asyncio.to_thread(answer, _query(request)))

    return endpoint


def _post(act: Callable[[Mapping[str, Json]], object]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        body = await read_body(request, most=_BODY_BYTES, seconds=_BODY_SECONDS)
        return _json(await asyncio.to_thread(act, body))

    return endpoint


def _export(board: Board) -> Endpoint:
    """Rows of JSON, as a file to keep."""

    async def endpoint(request: Request) -> Response:
        from starlette.responses import Response

        query = _query(request)
        rows = await asyncio.to_thread(board.export, query)
        name = f"{query.text('form') or 'best'}-step-{query.whole('step', 0)}.jsonl"
        headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response("".join(json.dumps(row) + "\n" for row in rows), 200, headers, "application/x-ndjson")

    return endpoint


def _events(board: Board, ended: Callable[[], bool]) -> Endpoint:
    """Server-sent events: the rows of runs that have changed since the last event."""

    async def endpoint(request: Request) -> Response:
        from starlette.responses import StreamingResponse

        return StreamingResponse(_changes(board, ended), headers=_HEADERS, media_type="text/event-stream")

    return endpoint


async def _changes(board: Board, ended: Callable[[], bool]) -> AsyncIterator[str]:
    known: dict[str, object] = {}
    said = time.monotonic()
    while not ended():
        now = {summary["name"]: summary for summary in await asyncio.to_thread(board.summaries)}
        changed = [summary for name, summary in now.items() if known.get(name) != summary]
        gone = [name for name in known if name not in now]
        if changed or gone or time.monotonic() - said > _AGING_SECONDS:
            yield f"data: {json.dumps({'runs': changed, 'gone': gone, 'now': time.time()})}\n\n"
            said = time.monotonic()
        known = dict(now)
        reading = any(summary["read"] < _ALL_READ for summary in now.values())
        await asyncio.sleep(_READING_SECONDS if reading else _UPDATE_SECONDS)


def _query(request: Request) -> Query:
    return Query({name: request.query_params.getlist(name) for name in request.query_params})


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a response in ASCII, because recorded text may hold half a character."""
    from starlette.responses import Response

    text = json.dumps(body, separators=(",", ":"))
    return Response(text, status, {**_HEADERS, **(headers or {})}, "application/json")
