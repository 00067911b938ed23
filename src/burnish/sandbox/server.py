"""A sandbox for other machines: SandboxFusion's schema for programs, and `/judge` for whole jobs, whose tests are held
apart from the candidate. The only file of this room that imports starlette and uvicorn.

What comes in is not trusted: the size of a request, the time for it, the number of waiting requests and all limits
are bounded. Only `application/json` is read, and without a token only under a name of this machine, so that a page in a
browser cannot ask for anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from burnish.errors import SandboxError, needing
from burnish.outside.listening import UVICORN, RefusedError, check_secret, ending, gone, guarded, read_body
from burnish.sandbox.job import Limits, Output, Program, Runner
from burnish.sandbox.messages import PROTOCOL, BadMessageError, exceeded, job_of, limits_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_LANGUAGE = "python"
_DEFAULT_SECONDS = 10.0  # SandboxFusion's
_STOP_SECONDS = 0.2
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class SandboxService:
    """Limits of a server. processes: jobs at once; queue: jobs that wait for those. most: limits of one job; body_bytes
    and body_seconds: of a request. token: None if everyone may ask."""

    processes: int = 2
    queue: int = 64
    most: Limits = field(default_factory=lambda: Limits(seconds=60.0, processor_seconds=60.0, memory_mb=2048))
    body_bytes: int = 1 << 24
    body_seconds: float = 30.0
    token: str | None = None


class Served(Runner, Protocol):
    """A sandbox of this machine."""

    def stop(self, thread: int) -> None:
        """End the job that this thread waits for: it gets a SandboxError."""


def application(sandbox: Served, service: SandboxService) -> Starlette:
    """The server as an ASGI application. Raises SandboxError where starlette is not installed."""
    with needing("'burnish[serve]'", SandboxError, "a sandbox server needs starlette and uvicorn"):
        from starlette.responses import JSONResponse, PlainTextResponse
        from starlette.routing import Route
    desk = _Desk(sandbox, service)

    def refuse(error: RefusedError) -> Response:
        return JSONResponse({"detail": str(error)}, error.status, error.headers)

    def answering(answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(await answer(request))
            except RefusedError as error:
                return refuse(error)
            except asyncio.CancelledError:
                if not desk.is_closed:
                    raise
                return refuse(ending())

        return endpoint

    async def ping(request: Request) -> Response:
        return PlainTextResponse("pong")

    routes = [
        Route("/run_code", answering(desk.run_code), methods=["POST"]),
        Route("/judge", answering(desk.judge), methods=["POST"]),
        Route("/judge", answering(desk.describe), methods=["GET"]),
        Route("/v1/ping", ping, methods=["GET"]),
    ]

    app = guarded(routes, service.token, refuse, {"/v1/ping"})
    app.state.desk = desk
    return app


def check_address(host: str, token: str | None) -> None:
    """SandboxError for an address that other machines reach, without a token."""
    check_secret(host, token, SandboxError, f"a sandbox on {host} would run programs for", "--token-variable")


def serve(sandbox: Served, service: SandboxService, listener: socket.socket) -> None:
    """Serve until a signal ends it, which also closes the sandbox: running jobs end, and waiting clients get 503.
    SandboxError as in `check_address`, and where starlette or uvicorn is missing."""
    check_address(listener.getsockname()[0], service.token)
    app = application(sandbox, service)
    with needing("'burnish[serve]'", SandboxError, "a sandbox server needs starlette and uvicorn"):
        import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, *arguments: Any, **named: Any) -> None:
            await app.state.desk.close()  # before it waits for the requests, which wait for jobs
            await super().shutdown(*arguments, **named)

    connections = 2 * (service.processes + service.queue)  # requests get a better answer before
    config = uvicorn.Config(app, limit_concurrency=connections, **UVICORN)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has ended
        Server(config).run(sockets=[listener])


@dataclass(slots=True)
class _Turn(Generic[_Result]):
    """A call in a thread. is_unwanted: nobody waits for it any more."""

    call: Callable[[], _Result]
    thread: int | None = None
    is_unwanted: bool = False

    def run(self) -> _Result:
        self.thread = threading.get_ident()
        if self.is_unwanted:
            raise SandboxError("the client has gone")
        return self.call()


class _Desk:
    """Takes requests, and limits how many of them run and wait."""

    def __init__(self, sandbox: Served, service: SandboxService) -> None:
        self._sandbox = sandbox
        self._service = service
        self._threads = ThreadPoolExecutor(service.processes, thread_name_prefix="sandbox")
        self._open = 0
        self.is_closed = False

    async def close(self) -> None:
        """End running jobs, and refuse waiting and later ones."""
        self.is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._sandbox.close)

    async def describe(self, request: Request) -> dict[str, Any]:
        return {"protocol": PROTOCOL, "limits": asdict(self._service.most)}

    async def judge(self, request: Request) -> dict[str, Any]:
        """The verdict on a job; `error` and `remedy` if there is none."""
        asked = await self._body(request)
        try:
            limits = self._limits(asked.get("limits"))
            # Large values take a while to decode: in a thread, so that the others are answered meanwhile.
            verdict = await self._in_turn(lambda: self._sandbox.run(job_of(asked.get("job")), limits), request)
        except BadMessageError as error:
            raise RefusedError(422, str(error)) from error
        except SandboxError as error:
            return {"error": error.message, "remedy": error.remedy}
        return {"verdict": asdict(verdict)}

    def _limits(self, asked: Any) -> Limits:
        """Raise BadMessageError for limits above the limits of this server: nothing is cut in silence."""
        limits, most = limits_of(asked), self._service.most
        name = exceeded(limits, most)
        if name:
            raise BadMessageError(
                f"limits.{name} is {getattr(limits, name):g}, and this server allows up to {getattr(most, name):g}"
            )
        return limits

    async def run_code(self, request: Request) -> dict[str, Any]:
        """SandboxFusion's answer for one program."""
        asked = await self._body(request)
        program, limits = self._program(asked)
        refused = _unsupported(asked)
        if refused:
            return self._answer("Failed", refused, None)
        try:
            output = await self._in_turn(lambda: self._sandbox.output(program, limits), request)
        except SandboxError as error:
            return self._answer("SandboxError", error.message, None)
        ended_well = output.code == 0 and not output.timed_out
        return self._answer("Success" if ended_well else "Failed", "", output)

    def _answer(self, status: str, message: str, output: Output | None) -> dict[str, Any]:
        result = None
        if output is not None:
            result = {
                "status": "TimeLimitExceeded" if output.timed_out else "Finished",
                "execution_time": output.seconds,
                "return_code": None if output.timed_out else output.code,
                "stdout": output.stdout,
                "stderr": output.stderr,
            }
        return {
            "status": status,
            "message": message,
            "compile_result": None,
            "run_result": result,
            "executor_pod_name": None,
            "files": {},
        }

    def _program(self, asked: Mapping[str, Any]) -> tuple[Program, Limits]:
        most = self._service.most
        code, stdin = asked.get("code"), asked.get("stdin")
        seconds, memory = asked.get("run_timeout", _DEFAULT_SECONDS), asked.get("memory_limit_MB", -1)
        if type(code) is not str or (stdin is not None and type(stdin) is not str):
            raise RefusedError(422, "code must be a text, and stdin a text or null")
        if type(seconds) not in (int, float) or not 0 < seconds <= most.seconds:
            raise RefusedError(422, f"run_timeout must be above 0, and at most {most.seconds:g} seconds here")
        if type(memory) is not int or (memory != -1 and not 0 < memory <= most.memory_mb):
            raise RefusedError(422, f"memory_limit_MB must be -1, or from 1 to {most.memory_mb} here")
        memory = self._sandbox.limits.memory_mb if memory == -1 else memory
        limits = replace(most, seconds=float(seconds), processor_seconds=float(seconds), memory_mb=memory)
        return Program(code, stdin or ""), limits

    async def _body(self, request: Request) -> dict[str, Any]:
        service = self._service
        return await read_body(request, most=service.body_bytes, seconds=service.body_seconds, unreadable=422)

    async def _in_turn(self, call: Callable[[], _Result], request: Request) -> _Result:
        """Run it in a thread when one is free, and end it if its client goes away. RefusedError if too many wait
        already, or the server ends."""
        if self.is_closed:
            raise ending()
        if self._open >= self._service.processes + self._service.queue:
            raise RefusedError(503, f"{self._service.queue} requests are waiting already", headers={"Retry-After": "1"})
        self._open += 1
        turn = _Turn(call)
        future = asyncio.get_running_loop().run_in_executor(self._threads, turn.run)
        future.add_done_callback(self._done)
        left = asyncio.ensure_future(gone(request))
        try:
            both: set[asyncio.Future[Any]] = {future, left}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            while not future.done():  # a client that goes away makes no room before its job has ended
                turn.is_unwanted = True
                if turn.thread is None:
                    future.cancel()
                else:
                    self._sandbox.stop(turn.thread)
                await asyncio.wait({future}, timeout=_STOP_SECONDS)
            if future.cancelled():
                raise ending()
            return future.result()
        except SandboxError as error:
            if self.is_closed:  # no fault of the sandbox: another server may do the job
                raise ending() from error
            raise
        finally:
            left.cancel()

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._open -= 1
        if not future.cancelled():
            future.exception()  # read here too, for callers that have gone away


def _unsupported(asked: Mapping[str, Any]) -> str:
    """Name the part of a request that this server does not support; "" if it supports all."""
    if asked.get("language") != _LANGUAGE:
        return f"language is {asked.get('language')!r}, and this server runs {_LANGUAGE} only"
    for name in ("files", "fetch_files", "args"):
        if asked.get(name):
            return f"{name} is not supported by this server: a program has its code and its standard input"
    return ""
