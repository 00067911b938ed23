"""The board's server: what it gives away, to whom, and what it refuses. Foreign pages are in `test_listening.py`."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from board_runs import line, write_rows, write_step
from serving import served

from burnish.board.answers import Board
from burnish.board.runs import Runs
from burnish.board.server import application, check_address
from burnish.errors import ConfigError

pytest.importorskip("starlette", reason="needs burnish[serve]")

SECRET = "a secret of the board"
Answer = tuple[int, Mapping[str, str], bytes]
Ask = Callable[..., Answer]
Serve = Callable[..., Ask]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "a"
    write_rows(folder, {"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.75})
    write_step(folder, 1, [line(0, 0, 1.0), line(0, 1, 0.0)])
    (folder / "secret.txt").write_text("not for the board")
    return folder


@pytest.fixture
def serve(run: Path) -> Iterator[Serve]:
    """Start a board of the folder above the run, and return a function that asks it."""
    with ExitStack() as stack:

        def start(*, key: str | None = None, control: bool = False) -> Ask:
            board = Board(Runs.below([str(run.parent)]), control)
            port = stack.enter_context(served(lambda ended: application(board, key, ended))).getsockname()[1]
            return lambda method, path, body=None, **headers: asked(port, method, path, body, headers)

        yield start


def asked(port: int, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if sent is not None else {}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, sent, {**kind, **named})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def data(found: Answer) -> Any:
    assert found[0] == 200, found
    return json.loads(found[2])


def test_from_the_list_of_runs_to_a_response(serve: Serve) -> None:
    ask = serve()
    overview = data(ask("GET", "/api/runs"))
    assert [(one["name"], one["step"], one["state"]) for one in overview["runs"]] == [("a", 2, "stopped")]
    assert overview["control"] is False
    curve = data(ask("GET", "/api/points?run=a&metric=reward/mean"))
    assert curve == {"a": {"reward/mean": {"steps": [1, 2], "x": [1, 2], "y": [0.5, 0.75], "total": 1.25, "count": 2}}}
    assert data(ask("GET", "/api/run?run=a"))["steps"] == [1]
    groups = data(ask("GET", "/api/groups?run=a&step=1"))
    assert [one["spread"] for one in groups["groups"]] == [1.0]
    group = data(ask("GET", "/api/group?run=a&step=1&group=0&low=0.5"))
    assert [one["tokens"] for one in group["group"]["responses"]] == [["a", "b", "c"]]
    assert data(ask("GET", "/api/prompt?run=a&prompt=p0"))["missing"] == 0
    kept = ask("GET", "/api/export?run=a&step=1&form=pairs")
    assert json.loads(kept[2])["chosen"] == "abc"
    assert kept[1]["content-disposition"] == 'attachment; filename="pairs-step-1.jsonl"'


def test_events_begin_with_all_runs_and_say_how_old_the_last_step_is(
    serve: Serve, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("burnish.board.server._AGING_SECONDS", 0.1)
    ask = serve()
    port = ask.__closure__[0].cell_contents  # type: ignore[attr-defined]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/api/events")
    lines = iter(connection.getresponse())
    events = (json.loads(line.removeprefix(b"data: ")) for line in lines if line != b"\n")
    assert [one["rows"] for one in next(events)["runs"]] == [2]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/mean": 1.0}\n')
    then = next(events)
    assert [(one["rows"], one["values"]) for one in then["runs"]] == [(3, {"reward/mean": [0.5, 1.0]})]
    still = next(events)
    assert (still["runs"], still["now"] > then["now"]) == ([], True)
    connection.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../../etc/passwd", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("/page/board.html", 404),
        ("/answers.py", 404),
        ("/secret.txt", 404),
        ("/api/run?run=../a", 404),
        ("/api/run?run=a/../a", 404),
        ("/api/run?run=/etc", 404),
        ("/api/run?run=a%00", 404),
        ("/api/run", 404),
        ("/api/groups?run=a&step=../../secret", 400),
        ("/api/groups?run=a&step=1&kind=../step", 400),
        ("/api/groups?run=a&step=-1", 200),
        ("/api/groups?run=a&step=99999999999999999999", 400),
        ("/api/group?run=a&step=1&group=77", 404),
        ("/api/timeline?run=a&step=x", 400),
        ("/api/timeline?run=a&step=-7&steps=-7", 200),
        ("/api/points?run=a&metric=x&axis=password", 400),
        ("/api/points?run=a&metric=x&from=nan", 400),
        ("/api/export?run=a&step=1&form=%22%0d%0aX-Evil:1", 400),
        ("/api/export?run=a&step=2", 422),
        ("/api/groups?run=a&step=1&text=%27%3B+DROP+TABLE+files%3B--", 200),
    ],
)
def test_nothing_but_runs_is_read_whatever_is_asked_for(serve: Serve, path: str, status: int) -> None:
    found = serve()("GET", path)
    assert found[0] == status
    assert b"root:" not in found[2]
    assert b"not for the board" not in found[2]
    assert "X-Evil" not in found[1]


def test_the_page_holds_no_data_and_may_load_nothing_from_elsewhere(serve: Serve) -> None:
    ask = serve()
    for name in ("", "board.js", "shared.js", "charts.js", "uplot/uPlot.iife.min.js", "page.css", "board.css"):
        status, headers, content = ask("GET", f"/{name}")
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert b'reward/mean": 0.5' not in content
    page = ask("GET", "/")[2]
    assert b"http" not in page
    assert b"innerHTML" not in ask("GET", "/board.js")[2] + ask("GET", "/charts.js")[2] + ask("GET", "/shared.js")[2]


def test_a_key_is_asked_for_by_everything_that_holds_data(serve: Serve) -> None:
    ask = serve(key=SECRET)
    assert ask("GET", "/")[0] == 200
    for path in ("/api/runs", "/api/points?run=a&metric=x", "/api/events", "/api/export?run=a&step=1"):
        assert ask("GET", path)[0] == 401
        assert ask("GET", path, Authorization="Bearer wrong")[0] == 401
    assert ask("POST", "/api/note", {"run": "a", "text": "x", "step": 1})[0] == 401
    assert ask("GET", "/api/runs", Authorization=f"Bearer {SECRET}")[0] == 200
    # With a key, the board may be asked under any name, by which other machines know this one.
    assert ask("GET", "/api/runs", Authorization=f"Bearer {SECRET}", Host="gpu7.example")[0] == 200


def test_other_machines_need_a_key() -> None:
    check_address("127.0.0.1", None)
    check_address("0.0.0.0", SECRET)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 would show these runs to everyone"):
        check_address("0.0.0.0", None)


def test_requests_reach_a_run_only_where_control_was_given(serve: Serve, run: Path) -> None:
    pause = {"run": "a", "request": "pause"}
    assert serve()("POST", "/api/request", pause)[0] == 403
    assert not (run / "control").exists()
    ask = serve(control=True)
    assert ask("GET", "/api/request?run=a&request=stop")[0] == 405
    assert ask("POST", "/api/request", b"run=a", Content_Type="text/plain")[0] == 415
    assert ask("POST", "/api/request", {"run": "a", "request": "../stop"})[0] == 400
    assert data(ask("POST", "/api/request", pause)) == {"ok": True}
    assert data(ask("GET", "/api/runs"))["runs"][0]["asked"] == ["pause"]
    assert data(ask("POST", "/api/request", {**pause, "on": False})) == {"ok": True}
    assert list((run / "control").iterdir()) == []


def test_a_note_is_kept(serve: Serve) -> None:
    ask = serve()
    data(ask("POST", "/api/note", {"run": "a", "text": "<b>odd", "step": 1, "group": 0}))
    assert [note["text"] for note in data(ask("GET", "/api/run?run=a"))["notes"]] == ["<b>odd"]
    for wrong in ({}, {"step": 1, "text": 3}, {"step": "1"}, {"step": 1, "kind": "/"}):
        assert ask("POST", "/api/note", {"run": "a", "text": "x", **wrong})[0] == 400
    assert ask("POST", "/api/note", {"run": "..", "text": "x", "step": 1})[0] == 404
