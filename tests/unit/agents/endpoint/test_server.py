"""The endpoint over HTTP: who may ask, what is too much, and errors in OpenAI's form."""

import http.client
import json
import select
import socket
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from burnish.agents.endpoint.request_queue import Desk, Order
from burnish.agents.endpoint.requests import RewardCall
from burnish.agents.endpoint.server import ServerThread, check_address
from burnish.errors import RolloutError
from burnish.outside.listening import RefusedError

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
FLAT = {"type": "function", "name": "calc", "parameters": {"type": "object", "properties": {}}}
CODE, TOO_LONG = "answer_does_not_fit", "context_length_exceeded"
JSON = {"Content-Type": "application/json"}
CHATS = "/v1/chat/completions"


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
        status, body = ask(server, CHATS, CHAT, **headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    status, body = ask(server, CHATS, CHAT, Authorization="Bearer secret-of-the-run")
    assert (status, body["choices"][0]["message"]["content"]) == (200, "yes")


def test_no_other_address_without_a_key() -> None:
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
    found, answer = ask(start(serving().desk, body_bytes=10_000), CHATS, body, **headers)
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


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/health", None, 200, None),
        ("/v1/models/tiny", None, 200, None),
        ("/v1/models/gpt/4", None, 404, "model_not_found"),
        ("/v1/embeddings", CHAT, 404, None),
        ("/", None, 404, None),
        ("/v1/chat/completions/", CHAT, 404, None),
        (CHATS, None, 405, None),
        ("/v1/models", CHAT, 405, None),
        ("/v1/responses", {"model": "tiny", "input": "hi", "previous_response_id": "x"}, 400, None),
        ("/v1/responses", {"model": "tiny", "input": "hi", "text": {"format": {"type": "json_object"}}}, 422, CODE),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": ""}] * 9_000}, 400, TOO_LONG),
        (CHATS, {**CHAT, "user": "a" * 1_400_000}, 413, TOO_LONG),
        (CHATS, {**CHAT, "messages": [{"role": "user", "content": "\ud800"}]}, 400, None),
        (CHATS, {**CHAT, "messages": [{"role": "a]b", "content": ""}]}, 400, None),
        (CHATS, {**CHAT, "messages": [{"role": "user", "name": "a]b", "content": ""}]}, 400, None),
        (CHATS, {**CHAT, "tools": [{"type": "function", "function": {"name": "a]"}}]}, 400, None),
    ],
)
def test_every_path_has_an_answer_in_openais_form(
    serving: Any, start: Any, path: str, body: Any, status: int, code: str | None
) -> None:
    found, answer = ask(start(serving().desk), path, body)
    assert found == status
    if status != 200:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["code"] == code


def test_health_needs_no_key_and_ends_with_the_engine(serving: Any, start: Any) -> None:
    loop = serving()
    server = start(loop.desk, key="secret-of-the-run")
    assert ask(server, "/health") == (200, {"status": "ok"})
    assert ask(server, "/nowhere")[0] == 401
    loop.desk.close()
    assert ask(server, "/health") == (503, {"status": "ending"})


@pytest.mark.parametrize("at", ["", "/t/x"])
def test_several_answers_are_samples_of_one_prompt(serving: Any, start: Any, script: Any, at: str) -> None:
    lines: list[str] = []
    server = start(serving(record=lines, others="follow").desk)
    status, answer = ask(server, f"{at}/v1/chat/completions", {**CHAT, "n": 3, "seed": 5})
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 21, "completion_tokens": 12, "total_tokens": 33}
    assert len({(request.name, request.sample_indices) for request in script.seen}) == 3  # noise of their own
    assert len({request.prompt_tokens for request in script.seen}) == 1
    ask(server, f"{at}/reward", {"reward": 1})
    assert len(lines) == 3


def test_calls_that_are_not_wanted_stay_in_the_content(serving: Any, start: Any, script: Any) -> None:
    said = '<tool_call>\n{"name": "calc", "arguments": {}}\n</tool_call>'
    script.say = lambda request: said
    asked = {**CHAT, "tools": [{"type": "function", "function": {"name": "calc"}}]}
    server = start(serving().desk)
    status, answer = ask(server, CHATS, {**asked, "tool_choice": "none"})
    assert (status, answer["choices"][0]["message"]) == (200, {"role": "assistant", "content": said})
    status, answer = ask(server, "/v1/responses", {"model": "tiny", "input": "hi", "tools": [FLAT]})
    assert (status, [item["type"] for item in answer["output"]]) == (200, ["function_call"])


def test_what_an_answer_was_cut_of_is_not_demanded(serving: Any, start: Any) -> None:
    asked = {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 2}
    status, answer = ask(start(serving().desk), CHATS, asked)
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
    asked = {"model": "tiny", "input": "hi", "text": {"format": {"type": "json_object"}}, "max_output_tokens": 2}
    status, answer = ask(start(serving().desk), "/v1/responses", asked)
    assert (status, answer["status"], answer["output"][0]["content"][0]["text"]) == (200, "incomplete", "ye")


@pytest.mark.parametrize("sent", [b"", b'{"model"'])
def test_a_client_that_goes_away_leaves_no_traceback(serving: Any, start: Any, sent: bytes, capfd: Any) -> None:
    server = start(serving().desk)
    place = urlsplit(server.url)
    for path in (CHATS, "/reward"):
        with socket.create_connection(("127.0.0.1", place.port or 0), timeout=20) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 99\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + sent)
    assert ask(server, "/health")[0] == 200
    server.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_trajectory_that_does_not_exist_is_not_found(start: Any) -> None:
    status, body = ask(start(Desk(lambda name: None)), "/t/x/v1/chat/completions", CHAT)
    assert (status, body["error"]["code"]) == (404, "trajectory_not_found")


@pytest.fixture
def desk(serving: Any) -> Desk:
    """Nobody takes its orders."""
    terms = serving().desk.find("")
    return Desk(lambda name: terms)


def test_too_many_and_too_slow_are_refused(desk: Desk, start: Any) -> None:
    server = start(desk, waiting=1, answer_seconds=0.5)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, server, CHATS, CHAT)
        (order,) = placed(desk)
        assert ask(server, CHATS, CHAT)[0] == 503
        status, answer = slow.result()
    assert (status, "within 0.5 s" in answer["error"]["message"]) == (503, True)
    assert order.answer.cancelled()  # nothing is sampled for it any more


def test_a_client_that_goes_away_takes_its_order_with_it(desk: Desk, start: Any) -> None:
    connection = http.client.HTTPConnection(urlsplit(start(desk).url).netloc, timeout=20)
    connection.request("POST", CHATS, json.dumps(CHAT), JSON)
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
        with pytest.raises(RefusedError) as caught:
            order.answer.result(timeout=0)
        assert caught.value.status == 503


def test_an_engine_that_fails_is_an_error_of_the_server(serving: Any, start: Any, script: Any) -> None:
    server = start(serving().desk)
    script.say = Mock(side_effect=RolloutError("broken"))
    assert [ask(server, CHATS, CHAT)[0] for _ in range(2)] == [500, 503]
