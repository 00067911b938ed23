"""An OpenAI-compatible endpoint for tests: a server of the standard library on a thread, which judges by a rule."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, str]]
Rule = Callable[[Messages], str]
Fault = Callable[[int, str], str]
"""From how many requests this prompt had before, and the prompt, to what happens: `429`, `reset`, `nonsense`, `slow`,
`endless`, another status, or nothing."""

MARKED = re.compile(r"\[begin (\w+) (\w+)\]\n(.*?)\n?\[end \1 \2\]", re.DOTALL)


def judge_at(stub: StubJudge, **options: Any) -> dict[str, Any]:
    """A reward `judge` of a run file that asks this stub."""
    return {"name": "judge", "options": {"url": stub.url, "model": "stub", **options}, "timeout_seconds": 60}


def shown(messages: Messages) -> dict[str, str]:
    """What is to be judged, by placeholder."""
    return {name: text for name, _, text in MARKED.findall(messages[1]["content"])}


class StubJudge:
    """`rule` answers a conversation; `fault` says what goes wrong before. Counts requests and those on their way.

    raw: bytes that are sent instead of any answer, and others that follow until the client goes away.
    """

    def __init__(
        self,
        rule: Rule,
        fault: Fault | None = None,
        *,
        slow_seconds: float = 0.05,
        raw: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.rule, self.fault, self.slow_seconds = rule, fault or (lambda count, prompt: ""), slow_seconds
        self.raw = raw
        self.usage: Any = {"prompt_tokens": 100, "completion_tokens": 10}
        self.finish_reason = "stop"
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: Counter[str] = Counter()
        self.in_flight = self.most_in_flight = 0
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"stub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def enter(self, body: dict[str, Any], headers: dict[str, str]) -> str:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            prompt = json.dumps(body.get("messages", body.get("prompt")))
            before = self._asked[prompt]
            self._asked[prompt] += 1
            fault = self.fault(before, prompt)
            self.faults[fault] += 1
            return fault

    def reply(self, body: dict[str, Any], fault: str) -> dict[str, Any]:
        """The answer to a request, unless its connection or status is at fault."""
        content = "I would rather talk about the weather." if fault == "nonsense" else self.rule(body["messages"])
        choice = {"message": {"content": content}, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self.usage}

    def leave(self) -> None:
        with self._lock:
            self.in_flight -= 1


class StubTeacher(StubJudge):
    """Answers completions: `entries` gives the `prompt_logprobs` of a prompt."""

    def __init__(self, entries: Callable[[list[int]], Any], fault: Fault | None = None, **settings: Any) -> None:
        super().__init__(str, fault, **settings)
        self.entries = entries

    def reply(self, body: dict[str, Any], fault: str) -> dict[str, Any]:
        return {} if fault == "nonsense" else {"choices": [{"prompt_logprobs": self.entries(body["prompt"])}]}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    stub: StubJudge
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.stub.enter(body, dict(self.headers))
        try:
            self._answer(body, fault)
        finally:
            self.stub.leave()

    def _answer(self, body: dict[str, Any], fault: str) -> None:
        if self.stub.raw is not None:
            self._send_raw(*self.stub.raw)
            return
        if fault == "slow":
            time.sleep(self.stub.slow_seconds)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "endless":
            self._stream_until_refused()
            return
        if fault.isdigit():
            self._send(int(fault), {"error": {"message": f"stub says {fault}"}}, {"Retry-After": "0.01"})
            return
        if ":" in fault:  # a status and what is said with it
            code, _, said = fault.partition(":")
            self._send(int(code), {"error": {"message": said}}, {})
            return
        self._send(200, self.stub.reply(body, fault), {})

    def _stream_until_refused(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        while True:  # until the client closes the connection, which is an error for `write`
            self.wfile.write(bytes(1 << 20))

    def _send_raw(self, sent: bytes, drip: bytes) -> None:
        self.close_connection = True
        self.wfile.write(sent)
        while drip:
            self.wfile.write(drip)
            time.sleep(0.02)

    def _send(self, code: int, data: dict[str, Any], headers: dict[str, str]) -> None:
        encoded = json.dumps(data).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(encoded)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: Any) -> None:
        """Nothing."""
