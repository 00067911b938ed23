"""Who may ask a server that has no key: raw bytes against the servers of models, of programs and of the
board."""

import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from serving import served

from burnish.agents.endpoint.request_queue import Desk
from burnish.agents.endpoint.requests import Terms
from burnish.agents.endpoint.server import Service as ModelService
from burnish.agents.endpoint.server import application as models
from burnish.board.answers import Board
from burnish.board.runs import Runs
from burnish.board.server import application as board
from burnish.errors import ConfigError
from burnish.outside.listening import listening, url_of
from burnish.rollouts.engine import Sampling
from burnish.sandbox.job import Limits
from burnish.sandbox.server import SandboxService as ProgramService
from burnish.sandbox.server import application as programs

pytest.importorskip("starlette", reason="needs burnish[serve]")


@pytest.fixture(scope="module", params=["models", "programs", "board"])
def server(request: Any) -> Iterator[tuple[int, str]]:
    """The port of a server without a key, and a path that answers GET."""
    if request.param == "models":
        terms = Terms(Sampling(8), "tiny", 64)
        app, path = models(Desk(lambda name: terms), ModelService()), "/v1/models"
    elif request.param == "board":
        app, path = board(Board(Runs(()))), "/api/runs"
    else:
        app, path = programs(Mock(limits=Limits()), ProgramService()), "/judge"
    with served(lambda _: app) as listener:
        yield listener.getsockname()[1], path


def status(port: int, lines: list[bytes]) -> int:
    """Of the answer to a request of these lines."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return int(answer.split(b" ", 2)[1])


FOREIGN = (
    b"evil.example:%d|evil.example|evil{x}.example:%d|localhost`x`:%d|\"localhost\":%d|'localhost':%d|localhost|127.0.0.1|"
    b"localhost:|localhost:1|localhost:0%d|localhost:%d0|localhost:+%d|localhost.:%d|127.0.0.1.:%d|a@localhost:%d||"
    b"evil.example:x@localhost:%d|localhost:%d@evil.example|localhost:%d/evil.example|localhost:%d#evil|localhost:%d?x|"
    b"localhost:%d\\evil|http://localhost:%d|local\thost:%d|localhost:%d evil.example|localhost:%d, evil.example|"
    b"localhost:%d\r\n .evil.example|127.1:%d|127.0.0.2:%d|0.0.0.0:%d|2130706433:%d|0x7f.1:%d|[::]:%d|::1:%d|"
    b"[::1%%lo]:%d|[0:0:0:0:0:0:0:1]:%d|[::ffff:127.0.0.1]:%d|LOCALHOST:%d|localhost.evil.example:%d|\xffocalhost:%d|"
    b"[localhost]:%d|127.0.0.1.nip.io:%d|%%6cocalhost:%d|localhost:%d\x0b|localhost:%d\x00"
)


@pytest.mark.parametrize("host", [b"127.0.0.1:%d", b"localhost:%d", b"[::1]:%d"])
def test_a_program_of_this_machine_is_answered(server: tuple[int, str], host: bytes) -> None:
    port, path = server
    asked = f"GET {path} HTTP/1.1".encode()
    for more in (b"Accept: */*", b"Origin: http://" + host % port, b"Sec-Fetch-Site: none", b"X-Forwarded-Host: evil"):
        assert status(port, [asked, b"Host: " + host % port, more]) == 200


def test_any_other_host_is_refused(server: tuple[int, str]) -> None:
    port, path = server
    for host in (FOREIGN % ((port,) * FOREIGN.count(b"%d"))).split(b"|"):
        assert status(port, [f"GET {path} HTTP/1.1".encode(), b"Host: " + host]) in (400, 403), host


@pytest.mark.parametrize(
    ("start", "headers"),
    [
        ("GET {path} HTTP/1.1", []),
        ("GET {path} HTTP/1.0", []),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Host: {ours}"]),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Host: evil.example"]),
        ("GET {path} HTTP/1.1", ["Host : {ours}"]),
        ("GET {path} HTTP/1.0", ["X-Forwarded-Host: {ours}"]),
        ("GET http://evil.example{path} HTTP/1.1", ["Host: {ours}"]),
        ("GET http://{ours}{path} HTTP/1.1", ["Host: evil.example"]),
        ("OPTIONS * HTTP/1.1", ["Host: {ours}"]),
        ("CONNECT evil.example:80 HTTP/1.1", ["Host: {ours}"]),
        *(
            ("GET {path} HTTP/1.1", ["Host: {ours}", f"Origin: {origin}"])
            for origin in (
                *("null", "http://evil.example", "http://localhost", "https://{ours}", "{ours}", "http://{ours}/", ""),
                *("http://localhost:1", "http://evil.example:{port}", "http://{ours}, http://evil.example", "file://"),
            )
        ),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Origin: http://{ours}", "Origin: http://evil.example"]),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Sec-Fetch-Site: cross-site"]),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Sec-Fetch-Site: same-site"]),
        ("OPTIONS {path} HTTP/1.1", ["Host: {ours}", "Origin: http://a.b", "Access-Control-Request-Method: POST"]),
        ("GET {path} HTTP/1.1", ["Host: evil.example", "Upgrade: websocket", "Connection: Upgrade"]),
        ("GET {path} HTTP/1.1", ["Host: {ours}", "Origin: http://a.b", "Upgrade: websocket", "Connection: Upgrade"]),
        ("GET /nowhere HTTP/1.1", ["Host: evil.example:{port}"]),
        ("GET {path}/ HTTP/1.1", ["Host: evil.example:{port}"]),
        ("HEAD {path} HTTP/1.1", ["Host: evil.example:{port}"]),
    ],
)
def test_a_page_in_a_browser_is_refused(server: tuple[int, str], start: str, headers: list[str]) -> None:
    port, path = server
    given = {"path": path, "port": port, "ours": f"127.0.0.1:{port}"}
    lines = [line.format(**given).encode() for line in (start, *headers)]
    assert status(port, lines) in (400, 403)


def test_an_address_is_named_as_clients_write_it_and_one_of_no_machine_is_refused() -> None:
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener, "127.0.0.1") == f"http://127.0.0.1:{port}"
        assert url_of(listener, "::1") == f"http://[::1]:{port}"
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1, port 0"), listening("192.0.2.1", 0):
        pass


@pytest.mark.parametrize(
    "kind", ["text/plain", "", "application/x-www-form-urlencoded", "text/plain; application/json", "application/jsonx"]
)
def test_a_form_of_a_page_is_not_read(server: tuple[int, str], kind: str) -> None:
    """Such requests need no preflight."""
    port, path = server
    path = {"/v1/models": "/reward", "/judge": "/run_code", "/api/runs": "/api/note"}[path]
    headers = [f"Host: localhost:{port}", f"Content-Type: {kind}", "Content-Length: 0"]
    assert status(port, [f"POST {path} HTTP/1.1".encode(), *(line.encode() for line in headers)]) == 415
