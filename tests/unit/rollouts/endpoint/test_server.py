"""The endpoint over HTTP: who may ask, what is too much, and errors in OpenAI's form."""

from __future__ import annotations

import http.client
import json
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from burnish.errors import RolloutError
from burnish.rollouts.endpoint.desk import Desk, Order
from burnish.rollouts.endpoint.requests import RefusedError, RewardCall
from burnish.rollouts.endpoint.server import ServerThread, Service, check_address
from burnish.rollouts.endpoint.standing import StandingLoop

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def start() -> Iterator[Callable[..., ServerThread]]:
    servers: list[ServerThread] = []

    def start(desk: Desk, **service: Any) -> ServerThread:
        servers.append(ServerThread(desk, Service(**service)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask(server: ServerThread, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer. Names of headers are written with `_`."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, data, {**({} if body is None else JSON), **given})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text)


def placed(desk: Desk) -> list[Order]:
    """What waits, once something does."""
    assert select.select([desk], [], [], 20)[0]
    return desk.take()


def test_only_those_with_the_key_are_answered(serving: Any, start: Any) -> None:
    server = start(serving().desk, key="secret-of-the-run")
    for headers in ({}, {"Authorization": "Bearer secret"}, {"Authorization": "secret-of-the-run"}):
        status, body = ask(server, "/v1/chat/completions", CHAT, **headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    status, body = ask(server, "/v1/chat/completions", CHAT, Authorization="Bearer secret-of-the-run")
    assert (status, body["choices"][0]["message"]["content"]) == (200, "yes")


def test_without_a_key_only_names_of_this_machine_are_answered(serving: Any, start: Any) -> None:
    server = start(serving().desk)
    assert ask(server, "/v1/models", Host="evil.example")[0] == 403
    assert ask(server, "/v1/models")[0] == 200
    with pytest.raises(RolloutError, match="everyone who can reach"):
        check_address("0.0.0.0", None)
    check_address("0.0.0.0", "key")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {"Content_Type": "text/plain"}, 415),
        (b"not json", {}, 400),
        (b"[1]", {}, 400),
        (b"[" * 100_000, {}, 413),
        (b"[" * 9_000, {}, 400),
        (json.dumps({**CHAT, "model": "x"}).encode(), {}, 404),
    ],
)
def test_what_is_no_request_has_an_error(serving: Any, start: Any, body: bytes, headers: Any, status: int) -> None:
    server = start(serving().desk, body_bytes=10_000)
    found, answer = ask(server, "/v1/chat/completions", body, **headers)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_tokens_have_the_form_that_renderers_read(serving: Any, start: Any, script: Any) -> None:
    prompt = script.tokenizer.encode("q", add_special_tokens=False)
    body = {"model": "tiny", "token_ids": prompt, "sampling_params": {"max_tokens": 9, "logprobs": 1}}
    status, answer = ask(start(serving().desk), "/t/x/inference/v1/generate", body)
    (choice,) = answer["choices"]
    assert status == 200
    assert script.tokenizer.decode(choice["token_ids"]) == "yes]"
    names = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert names == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(entry["logprob"] < 0 for entry in choice["logprobs"]["content"])
    assert (choice["finish_reason"], answer["prompt_token_ids"]) == ("stop", prompt)
    assert ask(start(serving().desk), "/inference/v1/generate", {"token_ids": [10_000]})[0] == 400


def test_a_trajectory_that_does_not_exist_is_not_found(start: Any) -> None:
    status, body = ask(start(Desk(lambda name: None)), "/t/x/v1/chat/completions", CHAT)
    assert (status, body["error"]["code"]) == (404, "trajectory_not_found")


def test_too_many_and_too_slow_are_refused(serving: Callable[..., StandingLoop], start: Any) -> None:
    """Nobody takes the orders of this desk."""
    terms = serving().desk.find("")
    desk = Desk(lambda name: terms)
    server = start(desk, waiting=1, answer_seconds=0.5)
    slow: list[Any] = []
    thread = threading.Thread(target=lambda: slow.append(ask(server, "/v1/chat/completions", CHAT)))
    thread.start()
    (order,) = placed(desk)
    assert ask(server, "/v1/chat/completions", CHAT)[0] == 503
    thread.join()
    assert slow[0][0] == 503
    assert "within 0.5 s" in slow[0][1]["error"]["message"]
    assert order.answer.cancelled()  # nothing is sampled for it any more


def test_a_client_that_goes_away_takes_its_order_with_it(serving: Any, start: Any) -> None:
    terms = serving().desk.find("")
    desk = Desk(lambda name: terms)
    connection = http.client.HTTPConnection(urlsplit(start(desk).url).netloc, timeout=20)
    connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), JSON)
    (order,) = placed(desk)
    connection.close()
    with pytest.raises(CancelledError):
        order.answer.result(timeout=20)


def test_whoever_waits_when_a_server_ends_is_told() -> None:
    desk = Desk(lambda name: None)
    waiting, late = Order("x", RewardCall(1.0)), Order("x", RewardCall(1.0))
    desk.place(waiting)
    desk.close()
    desk.place(late)
    for order in (waiting, late):
        error = order.answer.exception(timeout=0)
        assert isinstance(error, RefusedError)
        assert error.status == 503


def test_an_engine_that_fails_is_an_error_of_the_server(serving: Any, start: Any, script: Any) -> None:
    loop = serving()
    server = start(loop.desk)

    script.say = Mock(side_effect=RolloutError("broken"))
    assert ask(server, "/v1/chat/completions", CHAT)[0] == 500
    assert ask(server, "/v1/chat/completions", CHAT)[0] == 503
