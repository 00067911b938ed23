"""A sandbox on another machine: its server, its client, and what crosses between them."""

import contextlib
import json
import math
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import serving
from serving import free_port, listens
from watching import children, wait_for

from burnish.errors import SandboxError
from burnish.outside.listening import listening
from burnish.sandbox.job import AssertTests, Case, FunctionTests, Limits, Output, Program, ProgramTests, Runner, Verdict
from burnish.sandbox.messages import PROTOCOL, BadMessageError, job_of, limits_of, output_of, plain_job, verdict_of
from burnish.sandbox.remote import RemoteSandbox
from burnish.sandbox.sandbox import Sandbox
from burnish.sandbox.server import SandboxService, application, serve

pytest.importorskip("starlette", reason="needs burnish[serve]")
pytest.importorskip("uvicorn", reason="needs burnish[serve]")
from starlette.responses import Response

TOKEN = "0123456789abcdef"
LIMITS = Limits(seconds=60.0, processor_seconds=60.0)
GOOD = {"code": "", "language": "python"}
DOUBLE = "def f(x): return 2 * x"
MANY = Limits(seconds=60.0, processor_seconds=60.0, memory_mb=2048)


@contextmanager
def served(sandbox: Runner, service: SandboxService | None = None, *, judges: bool = True) -> Iterator[str]:
    """The address of a server; with `judges=False` one that only speaks SandboxFusion's schema."""
    app = application(sandbox, service or SandboxService())
    if not judges:
        app.router.routes = [route for route in app.router.routes if route.path != "/judge"]
    with serving.served(lambda _: app) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class Pretended:
    """A sandbox that runs nothing. `may_end` holds jobs back."""

    limits = LIMITS

    def __init__(self, output: Output | None = None) -> None:
        self.may_end = threading.Event()
        self.may_end.set()
        self.asked: list[tuple[object, Limits | None]] = []
        self.stopped: list[int] = []
        self._output = output or Output("2\n", "", 0, 0.5)

    def run(self, job: object, limits: Limits | None = None) -> Verdict:
        self.asked.append((job, limits))
        assert self.may_end.wait(60)
        return Verdict("failed", 1, 2, 0.25, "f(2) returned 5, not 4")

    def output(self, job: Program, limits: Limits | None = None) -> Output:
        self.asked.append((job, limits))
        assert self.may_end.wait(60)
        return self._output

    def stop(self, thread: int) -> None:
        self.stopped.append(thread)
        self.may_end.set()

    def close(self) -> None: ...


JOBS = [
    FunctionTests("code", "f", (Case((1, (2.5, {3}), Decimal("0.1")), {"a": [None, 1 << 70]}, {"k": b"x"}),)),
    FunctionTests("code", "A.f", (Case(([1],), [2], wrapped=True),), tolerance=0.5),
    AssertTests("code", ("assert f(1) == 2", "assert f(2)"), prelude="import math", entry="f"),
    AssertTests("code", ("assert f()",)),
    ProgramTests("code\u00e9", (("1\n", "2\n"), ("", "")), until_failure=True),
]


@pytest.mark.parametrize("job", JOBS)
def test_jobs_cross_as_they_are(job: Any) -> None:
    assert job_of(json.loads(json.dumps(plain_job(job)))) == job


BAD_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "other"}, "kind is 'other'"),
    ({"code": 1}, "code: expected str, got int"),
    ({"cases": [{"arguments": {"object": 1}}]}, "unknown tag"),
    ({"cases": [{**plain_job(JOBS[0])["cases"][0], "wrapped": 1}]}, "wrapped: expected bool, got int"),
    ({"tolerance": "1"}, "tolerance: expected float, got str"),
    ({"kind": "programs", "pairs": [["1"]]}, "pairs must contain only lists of length 2"),
    ({"kind": "programs", "pairs": [["1", 2]]}, "expected a string, got int"),
    ({"tolerance": math.nan}, "tolerance is nan"),
    ({"tolerance": -1}, "tolerance is -1"),
]
NO_NUMBERS = [-5, math.nan, math.inf, 10**400, "1"]
VERDICT = {"status": "passed", "passed": 1, "total": 1, "seconds": 1, "detail": "", "grade": "split"}
FAILED = {**VERDICT, "status": "failed", "total": 5}
RESULT = {"status": "Finished", "execution_time": 0.5, "return_code": 0, "stdout": "2", "stderr": None}


def test_what_no_client_sends_is_refused() -> None:
    for change, reason in BAD_JOBS:
        with pytest.raises(BadMessageError, match=reason):
            job_of({**plain_job(JOBS[0]), **change})
    with pytest.raises(BadMessageError, match="no 'seconds'"):
        limits_of({})
    assert limits_of(asdict(LIMITS)) == LIMITS
    for broken in (*({"seconds": value} for value in (*NO_NUMBERS, True)), {"processes": 1.5}, {"files": 0}):
        with pytest.raises(BadMessageError):
            limits_of({**asdict(LIMITS), **broken})


def test_what_no_server_answers_is_refused() -> None:
    assert verdict_of(VERDICT) == Verdict("passed", 1, 1, 1.0)
    assert verdict_of(FAILED).fraction == 0.2
    broken: list[dict[str, Any]] = [
        *({"passed": 2}, {"status": "won"}, {"grade": "best"}, {"total": "1"}, {"total": 5}, {"passed": 0, "total": 0}),
        *({"seconds": value} for value in NO_NUMBERS),
    ]
    of_failed = ({"passed": 5}, {"passed": -1}, {"passed": 0, "total": 0})
    for wrong in (*({**VERDICT, **change} for change in broken), *({**FAILED, **change} for change in of_failed)):
        with pytest.raises(BadMessageError):
            verdict_of(wrong)
    assert output_of({"run_result": RESULT}) == Output("2", "", 0, 0.5)
    for seconds in NO_NUMBERS:
        with pytest.raises(BadMessageError, match="execution_time"):
            output_of({"run_result": {**RESULT, "execution_time": seconds}})


def test_a_server_of_ours_judges_apart(sandbox: Sandbox) -> None:
    service = SandboxService(token=TOKEN, most=MANY)
    with served(sandbox, service) as url, RemoteSandbox(url, TOKEN, limits=LIMITS) as remote:
        assert remote.is_ours
        verdict = remote.run(FunctionTests(DOUBLE, "f", (Case((1,), 2), Case((2,), 5))))
        assert (verdict.status, verdict.passed, verdict.total, verdict.grade) == ("failed", 1, 2, "split")
        assert verdict.detail == "f(2) returned 4, not 5"
        equal_to_all = "class A(int):\n    __eq__ = lambda a, b: True\ndef f(x): return A(3)"
        assert remote.run(FunctionTests(equal_to_all, "f", (Case((1,), 2),))).status == "failed"
        assert remote.run(AssertTests(DOUBLE, ("assert f(2) == 4",))).status == "passed"
        assert remote.run(ProgramTests("print(int(input()) * 2)", (("1", "2"), ("2", "4")))).status == "passed"
        output = remote.output(Program("import sys\nprint(input())\nsys.exit(3)", "é"))
        assert (output.stdout, output.code, output.timed_out) == ("é\n", 3, False)
        with pytest.raises(SandboxError, match=r"do not ask the code for anything(?s:.*)fix the tests"):
            remote.run(AssertTests(DOUBLE, ("x = 1",)))


@pytest.mark.slow
def test_any_other_server_runs_programs_and_outputs_are_compared_here(sandbox: Sandbox) -> None:
    with served(sandbox, judges=False) as url, RemoteSandbox(url, limits=LIMITS) as remote:
        assert not remote.is_ours
        verdict = remote.run(ProgramTests("print(int(input()) * 2)", (("1", "2"), ("2", "5"))))
        assert (verdict.status, verdict.passed, verdict.grade) == ("failed", 1, "split")
        slow = remote.run(ProgramTests("while True: pass", (("1", "2"),)), replace(LIMITS, seconds=0.5))
        assert slow.status == "timed_out"
        with pytest.raises(SandboxError, match=r"tested in the candidate's process(?s:.*)sandbox.grade: shared"):
            remote.run(FunctionTests(DOUBLE, "f", (Case((1,), 2),)))


@pytest.mark.slow
def test_shared_tests_where_they_are_asked_for_by_name(sandbox: Sandbox) -> None:
    """`test_shared.py` has more of them."""
    with served(sandbox, judges=False) as url, RemoteSandbox(url, grade="shared", limits=LIMITS) as remote:
        prints = FunctionTests("print('passed')\ndef f(x): print(x)", "f", (Case((1,), 2),))
        for job, passed in ((AssertTests(DOUBLE, ("assert f(1) == 2", "assert f(1) == 3")), 1), (prints, 0)):
            verdict = remote.run(job)
            assert (verdict.status, verdict.passed, verdict.grade) == ("failed", passed, "shared"), verdict
        endless = remote.run(FunctionTests("while True: pass", "f", (Case((1,), 2),)), replace(LIMITS, seconds=0.5))
        assert (endless.status, endless.grade) == ("timed_out", "shared")


def test_a_server_of_ours_never_shares(sandbox: Sandbox) -> None:
    with served(sandbox) as url, RemoteSandbox(url, grade="shared", limits=LIMITS) as remote:
        assert remote.run(FunctionTests(DOUBLE, "f", (Case((1,), 2),))).grade == "split"


def post(url: str, asked: object, *, seconds: float = 60, **more: Any) -> httpx2.Response:
    content = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    headers = {"Content-Type": "application/json", **more}
    return httpx2.post(url, content=content, headers=headers, timeout=seconds, trust_env=False)


@pytest.mark.slow
def test_the_schema_of_sandbox_fusion() -> None:
    pretended = Pretended()
    with served(pretended) as url:
        assert httpx2.get(f"{url}/v1/ping", trust_env=False).text == "pong"
        asked = {"code": "print(2)", "language": "python", "stdin": None, "run_timeout": 3, "memory_limit_MB": 64}
        result = {**RESULT, "stdout": "2\n", "stderr": ""}
        around = {"message": "", "compile_result": None, "executor_pod_name": None, "files": {}}
        assert post(f"{url}/run_code", asked).json() == {"status": "Success", "run_result": result, **around}
        limits = replace(SandboxService().most, seconds=3.0, processor_seconds=3.0, memory_mb=64)
        assert pretended.asked == [(Program("print(2)", ""), limits)]
        other = post(f"{url}/run_code", {**asked, "language": "cpp"}).json()
        assert (other["status"], other["run_result"]) == ("Failed", None)
        assert other["message"] == "language is 'cpp', and this server runs python only"
        assert "files is not supported" in post(f"{url}/run_code", {**asked, "files": {"a": "eA=="}}).json()["message"]
    with served(Pretended(Output("", "SyntaxError", 1, 0.1))) as url:
        assert post(f"{url}/run_code", asked).json()["status"] == "Failed"
    slow = Pretended(Output("", "", -9, 3.0, timed_out=True))
    with served(slow) as url:
        answer = post(f"{url}/run_code", asked).json()
        assert (answer["status"], answer["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
        assert output_of(answer) == Output("", "", -9, 3.0, timed_out=True)


@pytest.mark.slow
def test_bad_requests_have_a_status_and_a_reason() -> None:
    with served(Pretended(), SandboxService(body_bytes=1000)) as url:
        wrong = ({"run_timeout": 0}, {"run_timeout": 61}, {"memory_limit_MB": 10**6})
        for asked in (b"{", b"[]", b"[" * 900, {"language": "python"}, *({**GOOD, **more} for more in wrong)):
            assert post(f"{url}/run_code", asked).status_code == 422, asked
        assert post(f"{url}/run_code", {**GOOD, "code": "x" * 1001}).status_code == 413
        assert post(f"{url}/run_code", GOOD, **{"Content-Type": "text/plain"}).status_code == 415
        assert post(f"{url}/run_code", GOOD, Host="example.com").status_code == 403
        assert post(f"{url}/judge", {"job": {}, "limits": {}}).status_code == 422
        more = post(f"{url}/judge", {"job": plain_job(JOBS[0]), "limits": asdict(replace(LIMITS, memory_mb=4096))})
        assert more.status_code == 422
        assert more.json()["detail"] == "limits.memory_mb is 4096, and this server allows up to 2048"
        assert httpx2.get(f"{url}/run_code", trust_env=False).status_code == 405


def test_jobs_are_decoded_where_they_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def decoding(data: Any) -> Any:
        threads.append(threading.current_thread().name)
        return job_of(data)

    monkeypatch.setattr("burnish.sandbox.server.job_of", decoding)
    with served(Pretended(), SandboxService(most=MANY)) as url, RemoteSandbox(url, limits=LIMITS) as remote:
        assert remote.run(JOBS[0]).passed == 1
        wrong = post(f"{url}/judge", {"job": {"kind": "other", "code": ""}, "limits": asdict(LIMITS)})
        assert (wrong.status_code, wrong.json()["detail"][:15]) == (422, "kind is 'other'")
    assert [name.partition("_")[0] for name in threads] == ["sandbox", "sandbox"]


def test_a_token_is_asked_of_everyone() -> None:
    with served(Pretended(), SandboxService(token=TOKEN)) as url:
        assert post(f"{url}/run_code", GOOD).status_code == 401
        assert post(f"{url}/run_code", GOOD, Authorization=f"Bearer {TOKEN}x").status_code == 401
        assert post(f"{url}/run_code", GOOD, Authorization=f"Bearer {TOKEN}", Host="example.com").status_code == 200
        with pytest.raises(SandboxError, match=r"refuses the token \(status 401\)(?s:.*)token_variable"):
            RemoteSandbox(url)


def test_no_other_address_without_a_token() -> None:
    refused = pytest.raises(SandboxError, match=r"0.0.0.0 would run programs for everyone(?s:.*)--token-variable")
    with listening("0.0.0.0", 0) as listener, refused:
        serve(Pretended(), SandboxService(), listener)


def test_a_full_queue_is_refused_and_its_room_comes_back() -> None:
    pretended = Pretended()
    pretended.may_end.clear()
    with served(pretended, SandboxService(processes=1, queue=1)) as url, ThreadPoolExecutor(2) as threads:

        def ask() -> int:
            """Until there is room."""
            while (status := post(f"{url}/run_code", GOOD).status_code) == 503:
                pass
            return status

        answers = [threads.submit(ask) for _ in range(2)]
        wait_for(lambda: len(pretended.asked) == 1)
        wait_for(lambda: full(url))
        refused = post(f"{url}/run_code", GOOD)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        pretended.may_end.set()
        assert [answer.result(60) for answer in answers] == [200, 200]
        wait_for(lambda: not full(url))


def test_jobs_of_clients_that_go_away_end(capfd: pytest.CaptureFixture[str]) -> None:
    """One that runs is stopped, one that waits never begins, and one that was not all sent is none."""
    pretended, body = Pretended(), json.dumps(GOOD).encode()
    pretended.may_end.clear()
    with served(pretended, SandboxService(processes=1, queue=1)) as url:
        port = int(url.rpartition(":")[2])
        head = f"POST /run_code HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n".encode()
        head += b"Content-Length: %d\r\n\r\n" % len(body)
        with contextlib.ExitStack() as clients:
            for sent in (body, body, body[:-1]):
                client = clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
                client.sendall(head + sent)
                wait_for(lambda: len(pretended.asked) == 1)
            wait_for(lambda: full(url))
        wait_for(lambda: not full(url))
    assert len(pretended.asked) == 1 + 1  # that of `full`
    assert len(set(pretended.stopped)) == 1
    assert "Traceback" not in capfd.readouterr().err


SERVER = """
import sys
from burnish.outside.listening import listening
from burnish.sandbox.job import Limits
from burnish.sandbox.sandbox import Sandbox
from burnish.sandbox.server import SandboxService, serve

with listening("127.0.0.1", int(sys.argv[2])) as listener, Sandbox(sys.argv[1]) as sandbox:
    serve(sandbox, SandboxService(processes=1, queue=8), listener)
print("ended in order")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_busy_server_ends_at_once_when_it_is_asked_to(sandbox: Sandbox, number: signal.Signals) -> None:
    """Well before the 60 s that its job may take, with an answer for everyone and without a traceback."""
    port = free_port()
    command = [sys.executable, "-c", SERVER, sandbox.tier, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    asked = {"code": "import time\ntime.sleep(50)", "language": "python", "run_timeout": 55}
    threads = ThreadPoolExecutor(3)
    try:
        wait_for(lambda: listens(port))
        assert httpx2.get(f"http://127.0.0.1:{port}/v1/ping", timeout=60, trust_env=False).text == "pong"
        # One runs, the others wait.
        answers = [threads.submit(post, f"http://127.0.0.1:{port}/run_code", asked) for _ in range(3)]
        wait_for(lambda: len(children(process.pid)) >= 2)  # the warm parent and its candidate
        process.send_signal(number)
        said, complained = process.communicate(timeout=40)
    finally:
        process.kill()
        threads.shutdown()
    came = [one.result() for one in answers if not isinstance(one.exception(), httpx2.TransportError)]  # not too late
    assert {(answer.status_code, answer.json()["detail"]) for answer in came} == {(503, "this server is ending")}
    assert complained == ""
    assert said == ("ended in order\n" if number == signal.SIGINT else "")
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGTERM)


def full(url: str) -> bool:
    """Whether a request finds no room. One that finds some waits, and is given up here."""
    try:
        return post(f"{url}/run_code", GOOD, seconds=0.5).status_code == 503
    except httpx2.ReadTimeout:
        return False


OURS = json.dumps({"protocol": PROTOCOL, "limits": asdict(MANY)}).encode()


@contextmanager
def scripted(statuses: list[int], body: bytes = OURS, headers: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A server that answers with these statuses, one a request, then with 200. It breaks off at a 0."""
    server = SimpleNamespace(requests=0)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        server.requests += 1
        if status := statuses.pop(0) if statuses else 200:
            await Response(body, status, headers)(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})

    with serving.served(lambda _: answer) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield server


@pytest.mark.slow
def test_failures_that_may_pass_are_tried_again() -> None:
    with scripted([500, 429, 0, 503]) as server, RemoteSandbox(server.url) as remote:
        assert remote.is_ours
        assert server.requests == 5


def test_limits_that_the_server_does_not_allow_are_found_when_it_is_opened() -> None:
    with served(Pretended(), SandboxService(most=replace(MANY, seconds=20.0))) as url:
        with pytest.raises(SandboxError, match=r"seconds is 60, and .* allows up to 20(?s:.*)--most-seconds"):
            RemoteSandbox(url, limits=LIMITS)
        with RemoteSandbox(url, limits=replace(LIMITS, seconds=20.0)) as remote:
            for ask in (remote.run, remote.output):
                with pytest.raises(SandboxError, match=r"memory_mb is 4096, and .* up to 2048(?s:.*)sandbox.memory_mb"):
                    ask(JOBS[4], replace(remote.limits, memory_mb=4096))


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        (PROTOCOL + 1, rf"protocol {PROTOCOL + 1} of /judge, and this Burnish {PROTOCOL}(?s:.*)the same version"),
        (None, r"speaks protocol None"),
        (PROTOCOL, r"cannot be read: there is no 'seconds'"),
    ],
)
def test_another_protocol_is_not_taken_for_another_kind_of_server(protocol: int | None, reason: str) -> None:
    with scripted([], json.dumps({"protocol": protocol}).encode()) as server, pytest.raises(SandboxError, match=reason):
        RemoteSandbox(server.url)
    with scripted([], b"{}") as server, RemoteSandbox(server.url) as remote:
        assert not remote.is_ours


@pytest.mark.parametrize("status", [400, 403, 422])
def test_other_failures_are_not(status: int) -> None:
    with scripted([status]) as server:
        with pytest.raises(SandboxError, match=str(status)):
            RemoteSandbox(server.url)
        assert server.requests == 1


def test_waits_have_an_end_and_a_name() -> None:
    late = pytest.raises(SandboxError, match=r"gave no answer to /judge within 1 seconds: it answered 503")
    with scripted([503] * 99) as server, late:
        RemoteSandbox(server.url, wait_seconds=1.0)
    with pytest.raises(SandboxError, match=r"ConnectError(?s:.*)check sandbox.url"):
        RemoteSandbox(server.url, wait_seconds=0.5)


def test_a_server_that_tells_no_times_is_timed_from_here() -> None:
    """Or the programs of a job would have the whole time each."""
    body = json.dumps({"status": "Success", "run_result": {**RESULT, "execution_time": None}}).encode()
    with scripted([], body) as server, RemoteSandbox(server.url) as remote:
        assert 0 < remote.output(Program("print(1)")).seconds <= remote.limits.seconds


def test_answers_that_are_none() -> None:
    with scripted([], b"<html>") as server, pytest.raises(SandboxError, match=r"status 200: <html>"):
        RemoteSandbox(server.url)


ADDRESSES = ("localhost:8080", "ftp://host", "http://host:abc", "http://host:99999", "http://host\x00")


@pytest.mark.parametrize("url", [*ADDRESSES, "http://user:password@host", "http://user:password@[::1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(SandboxError, match="is not the address of a sandbox") as caught:
        RemoteSandbox(url)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f" {TOKEN}", f"{TOKEN}\r\nX: 1", f"{TOKEN}\u00e9", f"{TOKEN}\x7f", ""])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with scripted([]) as server:
        with pytest.raises(SandboxError, match=r"cannot be sent(?s:.*)without spaces and line breaks") as caught:
            RemoteSandbox(server.url, token)
        assert TOKEN not in str(caught.value)
        assert server.requests == 0


def test_a_request_that_cannot_be_sent_is_not_tried_again_and_its_headers_are_not_shown() -> None:
    with scripted([]) as server, RemoteSandbox(server.url, TOKEN) as remote:
        remote._server.client.headers["Authorization"] = f"Bearer {TOKEN}\n"
        with pytest.raises(SandboxError, match=r"a request to .* cannot be sent") as caught:
            remote.output(Program(""))
        assert TOKEN not in str(caught.value)
        assert caught.value.__cause__ is None
        assert server.requests == 1  # the one that opened it


def test_an_answer_that_cannot_be_unpacked_is_a_failure_that_may_pass() -> None:
    late = pytest.raises(SandboxError, match=r"within 1 seconds: DecodingError")
    with scripted([], headers={"Content-Encoding": "gzip"}) as server, late:
        RemoteSandbox(server.url, wait_seconds=1.0)


def test_without_the_server_s_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette.routing", None)
    with pytest.raises(SandboxError, match=r"needs starlette and uvicorn(?s:.*)burnish\[serve\]"):
        application(Pretended(), SandboxService())
