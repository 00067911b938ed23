"""A sandbox on another machine: a server of ours, or any that speaks SandboxFusion's schema
(https://github.com/bytedance/SandboxFusion).

The HTTP library is httpx2, which huggingface_hub brings with it anyway.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from burnish.errors import SandboxError
from burnish.outside.supervise import Closing
from burnish.sandbox import shared
from burnish.sandbox.job import AssertTests, FunctionTests, Grade, Limits, Output, Program, ProgramTests, Verdict
from burnish.sandbox.messages import PROTOCOL, BadMessageError, exceeded, limits_of, output_of, plain_job, verdict_of
from burnish.sandbox.sandbox import judge_programs

WAIT_SECONDS = 60.0
"""For an answer, beyond the time that a job may take: for connections, a full queue, and tries after failures."""
_FIRST_SECONDS = 15.0
"""For the first answer of a server, when the sandbox is opened."""
_CONNECT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_ANSWER_BYTES = 1 << 26
_RETRIED = (429, *range(500, 600))
_Read = TypeVar("_Read")


class RemoteSandbox(Closing):
    """Runs jobs on a server. A context manager, which closes its connections.

    url: of the server, without a path of an endpoint. A server of ours (`burnish sandbox serve`) judges as the sandbox
    of this machine does (grade `split`). Any other is asked for programs only: outputs are compared here. Functions and
    assertions would have to be tested inside the candidate's process there, which only `grade="shared"` allows.
    Connection errors, 429 and 5xx are tried again, with growing random pauses, until the time for the job and
    `wait_seconds` are over. Raises SandboxError if the server cannot be reached, refuses the token, or is one of ours
    with another protocol or with lower limits.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        grade: Grade = "split",
        limits: Limits | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._server = _Server(url, token)
        self.url = self._server.url
        self.limits = limits or Limits()
        self._grade = grade
        self._wait = wait_seconds
        try:
            self._most = self._most_allowed()
            self._check(self.limits)
        except BaseException:
            self.close()
            raise

    @property
    def is_ours(self) -> bool:
        """True if the server judges whole jobs; any other only runs programs."""
        return self._most is not None

    def close(self) -> None:
        """Close the connections."""
        self._server.client.close()

    def run(self, job: FunctionTests | AssertTests | ProgramTests, limits: Limits | None = None) -> Verdict:
        """Judge a candidate. SandboxError when the server gives no verdict, or the tests cannot run or test nothing."""
        limits = limits or self.limits
        self._check(limits)
        if self.is_ours:
            asked = {"job": plain_job(job), "limits": asdict(limits)}
            answer = self._server.ask("POST", "/judge", asked, limits.seconds + self._wait)
            if "error" in answer:
                raise SandboxError(str(answer["error"]), remedy=answer.get("remedy"))
            return self._server.read(verdict_of, answer.get("verdict"))
        if isinstance(job, ProgramTests):
            return judge_programs(self.output, job, limits)
        if self._grade != "shared":
            raise SandboxError(
                f"{self.url} only runs programs, so functions and assertions would be tested in the candidate's "
                "process, where it can cheat",
                remedy="use `burnish sandbox serve`, or accept that with sandbox.grade: shared",
            )
        program, stdin, nonce = shared.question(job)
        return shared.verdict(self.output(Program(program, stdin), limits), nonce)

    def output(self, job: Program, limits: Limits | None = None, *, wait_seconds: float | None = None) -> Output:
        """Run a program once. SandboxError. wait_seconds: instead of the sandbox's."""
        limits = limits or self.limits
        wait = self._wait if wait_seconds is None else wait_seconds
        self._check(limits)
        asked = {
            "code": job.code,
            "language": "python",
            "stdin": job.stdin,
            "run_timeout": limits.seconds,
            "compile_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        began = time.monotonic()
        answer = self._server.ask("POST", "/run_code", asked, limits.seconds + wait)
        taken = time.monotonic() - began
        if answer.get("status") == "SandboxError" or answer.get("run_result") is None:
            raise SandboxError(
                f"{self.url} could not run a program: {str(answer.get('message'))[:300]}",
                remedy="look at the server's log; the candidate has no verdict",
            )
        output = self._server.read(output_of, answer)
        if answer["run_result"].get("execution_time") is None:  # or a job of many programs would never end
            output = replace(output, seconds=min(taken, limits.seconds))
        return output

    def _most_allowed(self) -> Limits | None:
        """The limits of a server of ours; None for any other."""
        found = self._server.ask("GET", "/judge", None, min(self._wait, _FIRST_SECONDS), absent=(404, 405))
        if "protocol" not in found:
            return None
        if found["protocol"] != PROTOCOL:
            raise SandboxError(
                f"the sandbox {self.url} speaks protocol {found['protocol']!r} of /judge, and this Burnish {PROTOCOL}",
                remedy="install the same version of Burnish here and there",
            )
        return self._server.read(limits_of, found.get("limits"))

    def _check(self, limits: Limits) -> None:
        """Raise SandboxError for limits above the limits of the server."""
        name = "" if self._most is None else exceeded(limits, self._most)
        if name:
            raise SandboxError(
                f"{name} is {getattr(limits, name):g}, and the sandbox {self.url} allows up to "
                f"{getattr(self._most, name):g}",
                remedy="lower sandbox.seconds or sandbox.memory_mb, or start the server with larger --most-seconds or "
                "--most-memory-mb",
            )


class _Server:
    """A server that speaks JSON. Requests that fail in a way that may pass are sent again."""

    def __init__(self, url: str, token: str | None) -> None:
        _check_address(url)
        _check_token(url, token)
        self.url = url.rstrip("/")
        self.client = httpx2.Client(
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            trust_env=False,  # code and tests go to this server alone, whatever proxies the environment names
            follow_redirects=False,
        )

    def ask(
        self, method: str, path: str, asked: object, seconds: float, absent: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """The JSON object that the server answers within these seconds; an empty one if its status is in `absent`."""
        deadline = time.monotonic() + seconds
        content = None if asked is None else json.dumps(asked).encode()
        for attempt in itertools.count():
            pause = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.5)
            try:
                status, body, retry_after = self._send(method, path, content, deadline)
            except httpx2.LocalProtocolError:  # its text shows the headers, and so the token
                raise SandboxError(
                    f"a request to {self.url} cannot be sent: HTTP does not allow its headers or its path",
                    remedy="check sandbox.url, and the token",
                ) from None
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status in absent:
                    return {}
                if status not in _RETRIED:
                    return self._answer(path, status, body)
                problem = f"it answered {status}"
                pause = max(pause, retry_after)
            if time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        raise SandboxError(
            f"the sandbox {self.url} gave no answer to {path} within {seconds:.0f} seconds: {problem}",
            remedy="check sandbox.url, and whether the server runs and has enough processes",
        )

    def _send(self, method: str, path: str, content: bytes | None, deadline: float) -> tuple[int, bytes, float]:
        """Status, body and Retry-After of one try."""
        left = max(deadline - time.monotonic(), 0.1)
        timeout = httpx2.Timeout(left, connect=min(left, _CONNECT_SECONDS))
        headers = {"Content-Type": "application/json"}
        url = self.url + path
        with self.client.stream(method, url, content=content, headers=headers, timeout=timeout) as response:
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > _ANSWER_BYTES or time.monotonic() > deadline:
                    raise httpx2.ReadTimeout(f"an answer that does not end ({len(body):,} bytes)")
            wait = response.headers.get("Retry-After", "0")
            return response.status_code, bytes(body), float(wait) if wait.isdigit() else 0.0

    def _answer(self, path: str, status: int, body: bytes) -> dict[str, Any]:
        if status in (401, 403):
            raise SandboxError(
                f"the sandbox {self.url} refuses the token (status {status})",
                remedy="name the environment variable that holds it: sandbox.token_variable",
            )
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        said = body[:300].decode(errors="replace")
        raise SandboxError(
            f"the sandbox {self.url} answered {path} with status {status}: {said}", remedy="check sandbox.url"
        )

    def read(self, read: Callable[[Any], _Read], data: object) -> _Read:
        """Read a part of an answer by a function that may raise BadMessageError. Raises SandboxError instead."""
        try:
            return read(data)
        except BadMessageError as error:
            raise SandboxError(
                f"the sandbox {self.url} gave an answer that cannot be read: {error}", remedy="check sandbox.url"
            ) from error


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
        names_host = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        has_secret = parts.username is not None or parts.password is not None
    except (ValueError, httpx2.InvalidURL):
        names_host, has_secret = False, False
    if not names_host or has_secret:
        raise SandboxError(
            f"{url.rpartition('@')[2]!r} is not the address of a sandbox",  # what is before @ may be a password
            remedy="give http://HOST:PORT or https://HOST, and the token by the name of an environment variable",
        )


def _check_token(url: str, token: str | None) -> None:
    if token is None:
        return
    if not token or token != token.strip() or not token.isascii() or not token.isprintable():
        raise SandboxError(
            f"the token for {url} cannot be sent: it is empty, or has characters that a header cannot have",
            remedy="give the secret alone, without spaces and line breaks around it, in ASCII",
        )
