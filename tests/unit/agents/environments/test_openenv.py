"""Servers of OpenEnv: a small one that speaks its protocol, and the package's own where it is installed."""

import http
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import free_port, listens
from watching import wait_for

from burnish.agents.environments.loading import find_environment
from burnish.agents.environments.protocol import Step
from burnish.agents.tools.calls import ToolError
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.types import Json

pytest.importorskip("websockets", reason="needs burnish[openenv]")
from websockets.sync.server import serve

from burnish.agents.environments import openenv

TEXT = {"properties": {"guess": {"type": "string"}}, "required": ["guess"]}
NUMBER = {"properties": {"guess": {"type": "integer"}, "loud": {"type": "boolean"}}, "required": ["guess"]}
CALL = {"properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}}, "required": ["tool_name"]}
TOOLS = [{"name": "add", "description": "Add.", "input_schema": {"properties": {"amount": {"type": "integer"}}}}]


class FakeServer:
    """Guess a number, in OpenEnv's protocol: `/schema` over HTTP, messages over `/ws`.

    tools: what its MCP server lists, None if it has none. answers: instead of its own, by the type of the message.
    """

    def __init__(
        self, action: Any, *, tools: Any = None, capacity: int = 8, port: int = 0, token: str | None = None
    ) -> None:
        self.action, self.tools, self.capacity, self.token = action, tools, capacity, token
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.resets: list[Any] = []
        self.sessions: set[Any] = set()
        self._server = serve(self._talk, "127.0.0.1", port, process_request=self._request)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def close(self) -> None:
        self._server.shutdown()
        for session in list(self.sessions):
            session.close()

    def _request(self, connection: Any, request: Any) -> Any:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no")
        if request.path == "/ws":
            return None
        if request.path == "/schema":
            return connection.respond(http.HTTPStatus.OK, json.dumps({"action": self.action}))
        return connection.respond(http.HTTPStatus.NOT_FOUND, "nothing")

    def _talk(self, connection: Any) -> None:
        if len(self.sessions) >= self.capacity:
            connection.send(json.dumps(refused("CAPACITY_REACHED", "all taken")))
            return
        self.sessions.add(connection)
        state = {"number": 7, "total": 0}
        try:
            for raw in connection:
                message = json.loads(raw)
                if message["type"] == "close":
                    return
                answer = self.answers.get(message["type"], lambda message: self._answer(message, state))(message)
                connection.send(answer if isinstance(answer, str) else json.dumps(answer))
        finally:
            self.sessions.discard(connection)

    def _answer(self, message: Any, state: dict[str, int]) -> Any:
        data = message["data"]
        if message["type"] == "reset":
            self.resets.append(data)
            state["number"] = data.get("number", 7)
            return observed({"message": "Guess."})
        if message["type"] == "mcp":
            return {"type": "mcp", "data": self._mcp(data, state)}
        if data.get("type") == "call_tool":
            return self._call(data, state)
        try:
            guess = int(data["guess"])
        except (KeyError, ValueError):
            errors = [{"loc": ["guess"], "msg": "not a number"}]
            return refused("VALIDATION_ERROR", "Invalid message", errors=errors)
        found = guess == state["number"]
        return observed({"message": "correct" if found else "wrong"}, reward=1.0 if found else 0.0, done=found)

    def _mcp(self, request: Any, state: dict[str, int]) -> Any:
        if self.tools is None:
            return {"error": {"code": -32603, "message": "Environment does not support MCP"}}
        if request["method"] == "tools/list":
            return {"result": {"tools": self.tools}}
        state["total"] += request["params"]["arguments"]["amount"]
        return {"result": {"content": [{"type": "text", "text": f"total {state['total']}"}], "is_error": False}}

    def _call(self, data: Any, state: dict[str, int]) -> Any:
        if "amount" not in data["arguments"]:
            error = {"error_type": "invalid_args", "message": "amount is missing"}
            return observed({"tool_name": "add", "result": None, "error": error}, reward=-1.0)
        state["total"] += data["arguments"]["amount"]
        content = [{"type": "text", "text": f"total {state['total']}"}]
        result = {"tool_name": "add", "result": {"content": content}, "error": None}
        return observed(result, reward=0.5, done=state["total"] > 5)


def observed(observation: Any, *, reward: float | None = None, done: bool = False) -> Any:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def refused(code: str, message: str, **more: Any) -> Any:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


Serve = Callable[..., FakeServer]


@pytest.fixture
def server() -> Iterator[Serve]:
    made: list[FakeServer] = []

    def make(*given: Any, **more: Any) -> FakeServer:
        made.append(FakeServer(*given, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def find(server: FakeServer, seconds: float = 5.0, **options: Json) -> Any:
    return find_environment(f"openenv:{server.url}", {"timeout_seconds": seconds, **options})


def test_turns_are_actions_of_one_text(server: Serve) -> None:
    fake = server(TEXT)
    source = find(fake)
    assert (source.schemas, source.answers_text) == ((), True)
    first, second = source.start({"number": 3, "prompt": "p"}, 9), source.start({}, 9)
    assert fake.resets == [{"seed": 9, "number": 3, "prompt": "p"}, {"seed": 9}]
    assert (first.opening, first.reward(), first.ended()) == ("Guess.", 0.0, False)
    assert first.step("7") == Step("wrong", 0.0, False)
    assert second.step("7") == Step("correct", 1.0, True)  # each has a session of its own
    assert first.step("three") == Step("Error: guess: not a number", 0.0, False)
    assert first.step("3") == Step("correct", 1.0, True)
    assert (first.reward(), first.ended()) == (1.0, True)
    first.close()
    second.close()
    wait_for(lambda: not fake.sessions)


def test_actions_with_several_fields_are_one_tool(server: Serve) -> None:
    source = find(server(NUMBER))
    assert not source.answers_text
    assert [schema["function"]["name"] for schema in source.schemas] == ["step"]
    environment = source.start({"seed": 5, "number": 3}, 9)
    assert environment.reward() == 0.0
    assert environment.call("step", {"guess": 2}) == Step("wrong", 0.0, False)
    with pytest.raises(ToolError, match="guess: not a number"):
        environment.call("step", {})
    assert environment.call("step", {"guess": 3}) == Step("correct", 1.0, True)


def test_tools_of_mcp_are_called_by_steps(server: Serve) -> None:
    source = find(server(CALL, tools=TOOLS))
    (schema,) = source.schemas
    parameters = {"type": "object", "properties": {"amount": {"description": "", "type": "integer"}}}
    assert schema["function"] == {"name": "add", "description": "Add.", "parameters": parameters}
    environment = source.start({}, 0)
    assert environment.call("add", {"amount": 4}) == Step("total 4", 0.5, False)
    with pytest.raises(ToolError, match="amount is missing"):
        environment.call("add", {})
    assert environment.call("add", {"amount": 4}) == Step("total 8", 0.5, True)
    assert (environment.reward(), environment.ended()) == (0.0, True)  # 0.5 - 1 + 0.5


def test_tools_next_to_actions_of_another_kind(server: Serve) -> None:
    source = find(server(TEXT, tools=TOOLS))
    assert not source.answers_text
    environment = source.start({}, 0)
    assert environment.call("add", {"amount": 4}) == Step("total 4")
    assert environment.reward() is None


def test_a_server_whose_sessions_are_taken_is_asked_again(server: Serve) -> None:
    fake = server(TEXT, capacity=1)
    source = find(fake)  # its session is given back
    first = source.start({}, 0)
    threading.Timer(0.3, first.close).start()
    assert source.start({}, 0).step("7").ended
    with pytest.raises(EnvironmentFailedError, match="has no session: all taken\n  -> raise max_concurrent_envs"):
        find(fake, seconds=2.0)


def test_a_server_that_is_away_is_asked_again(server: Serve) -> None:
    fake = server(TEXT)
    source, port = find(fake), fake._server.socket.getsockname()[1]
    fake.close()
    threading.Timer(0.4, lambda: server(TEXT, port=port)).start()
    assert source.start({}, 0).step("7").ended


def test_a_server_that_dies(server: Serve) -> None:
    fake = server(TEXT)
    environment = find(fake).start({}, 0)
    fake.close()
    with pytest.raises(EnvironmentFailedError, match=r"the server of openenv:http://.* is gone \(asked for 'step'\)"):
        environment.step("7")
    with pytest.raises(EnvironmentFailedError, match=r"schema of its actions at .*\n  -> start the server"):
        find(fake, seconds=1.0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda message: time.sleep(1), "did not answer 'step' in 0.3 seconds\n  -> if it is only slow, raise"),
        (lambda message: "no JSON", "cannot be asked for 'step' in JSON"),
        (lambda message: [], "answered 'step' with something that is not a message with data"),
        (lambda message: {"type": "observation"}, "answered 'step' with something that is not a message with data"),
        (lambda message: {"type": "observation", "data": {}}, "answered 'step' without an observation"),
        (lambda message: observed({}, reward="much"), "the reward of openenv:.* is of the type str"),  # type: ignore[arg-type]
        (lambda message: observed({}, done="no"), "`done` of openenv:.* is of the type str"),  # type: ignore[arg-type]
        (lambda message: refused("SESSION_ERROR", "lost"), "has no session: lost"),
    ],
)
def test_answers_that_make_no_sense(server: Serve, answer: Callable[[Any], Any], message: str) -> None:
    fake = server(TEXT)
    environment = find(fake).start({}, 0)
    environment._session._server = openenv.ServerAddress(fake.url, 0.3)  # only now: connecting may take longer
    fake.answers["step"] = answer
    with pytest.raises(EnvironmentFailedError, match=message):
        environment.step("7")


def test_a_reset_that_is_refused(server: Serve) -> None:
    fake = server(TEXT)
    source = find(fake)
    with pytest.raises(EnvironmentFailedError, match="cannot be asked for 'reset' in JSON: Out of range"):
        source.start({"number": float("nan")}, 0)
    fake.answers["reset"] = lambda message: refused("EXECUTION_ERROR", "no disk")
    with pytest.raises(EnvironmentFailedError, match="refuses to reset: no disk"):
        source.start({}, 0)


def test_a_server_that_asks_for_a_token(server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = server(TEXT, token="secret")
    monkeypatch.setenv("BURNISH_TEST_TOKEN", "secret\n")
    assert find(fake, token_variable="BURNISH_TEST_TOKEN").start({}, 0).step("7") == Step("correct", 1.0, True)
    monkeypatch.setenv("BURNISH_TEST_TOKEN", "guessed")
    with pytest.raises(EnvironmentFailedError, match="401") as caught:
        find(fake, token_variable="BURNISH_TEST_TOKEN")
    assert "guessed" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "variable", "why"),
    [
        (None, "BURNISH_TEST_TOKEN", "names BURNISH_TEST_TOKEN, which is not set"),
        (" ", "BURNISH_TEST_TOKEN", "names BURNISH_TEST_TOKEN, which is not set"),
        ("séc\nret", "BURNISH_TEST_TOKEN", "which has a line break or other characters"),
        ("secret", 3, r"whose token_variable names \(masked\), which is not set"),
    ],
)
def test_tokens_that_cannot_be_used(
    value: str | None, variable: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BURNISH_TEST_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("BURNISH_TEST_TOKEN", value)
    with pytest.raises(ConfigError, match=why) as caught:
        find_environment("openenv:http://127.0.0.1:1", {"token_variable": variable})
    assert "ret" not in str(caught.value.message)


def test_what_is_no_server_of_openenv(server: Serve) -> None:
    with pytest.raises(EnvironmentFailedError, match="does not give the schema of its actions"):
        find(server("nothing"))
    with pytest.raises(EnvironmentFailedError, match="takes calls of tools, but lists none"):
        find(server(CALL))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("openenv:localhost:8000", {}, "which is not the address of a server\n  -> use openenv:http://HOST:PORT"),
        ("openenv:http://", {}, "which is not the address of a server"),
        ("openenv:http://h:1", {"timeout": 3}, "has no option 'timeout'\n  -> did you mean 'timeout_seconds'"),
        ("openenv:http://h:1", {"timeout_seconds": 0}, "whose timeout_seconds is 0"),
        ("openenv:http://h:1", {"timeout_seconds": "3"}, "whose timeout_seconds is '3'"),
    ],
)
def test_addresses_and_options(name: str, options: dict[str, Json], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_environment(name, options)


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "burnish.agents.environments.openenv")
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(ConfigError, match=r"needs the package websockets .*\n  -> pip install 'burnish\[openenv\]'"):
        find_environment("openenv:http://127.0.0.1:1", {})


TYPE = {"const": "move", "default": "move", "type": "string"}
SAY = {"type": "string", "title": "Message", "description": "What to say"}
MOVE = {"type": "string", "enum": ["left", "right"]}
WRONG = [{"loc": ["a", 0], "msg": "too long"}, {"msg": "no"}]


@pytest.mark.parametrize(
    ("required", "fields", "field"),
    [
        (["message"], {"message": SAY, "metadata": {"type": "object"}, "type": TYPE}, "message"),
        ([], {"message": SAY}, "message"),
        (["message"], {"message": SAY, "loud": {"type": "boolean", "default": False}}, "message"),
        (["message", "number"], {"message": SAY, "number": {"type": "integer"}}, None),
        (["message", "other"], {"message": SAY, "other": SAY}, None),
        (["move"], {"move": MOVE}, None),
        ([], {}, None),
    ],
)
def test_actions_that_are_a_text(required: list[str], fields: dict[str, Any], field: str | None) -> None:
    assert openenv.text_field({"properties": fields, "required": required}) == field


def test_actions_with_fields_are_one_tool() -> None:
    properties = {"move": MOVE, "of": {"$ref": "#/$defs/Piece"}, "type": TYPE}
    given = {"properties": properties, "required": ["move", "type"], "$defs": {"Piece": {"type": "integer"}}}
    found = {"move": {"description": "", **MOVE}, "of": {"type": "integer", "description": ""}}
    parameters = {"type": "object", "properties": found, "required": ["move"]}
    function = {"name": "step", "description": "Act in the environment.", "parameters": parameters}
    assert openenv.step_schema(given) == {"type": "function", "function": function}


def result_text(result: object) -> str:
    return openenv.result_text({"result": result, "error": None})


@pytest.mark.parametrize(
    ("read", "said", "text"),
    [
        (openenv.observation_text, {"message": "up", "reward": 1.0, "done": True, "metadata": {"seed": 1}}, "up"),
        (openenv.observation_text, {"message": "höher", "left": 3}, '{"message": "höher", "left": 3}'),
        (openenv.observation_text, {"left": 3}, '{"left": 3}'),
        (openenv.observation_text, {"reward": 1.0, "done": True}, ""),
        (result_text, "plain", "plain"),
        (result_text, {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "data": 1}, "a\nb"),
        (result_text, {"content": [], "data": 1}, '{"content": [], "data": 1}'),
        (result_text, 5, "5"),
        (result_text, None, "null"),
        (openenv.error_text, {"message": "x", "errors": WRONG}, "a.0: too long; no"),
        (openenv.error_text, {"message": "no such move", "code": "EXECUTION_ERROR"}, "no such move"),
        (openenv.error_text, {}, "no reason given"),
    ],
)
def test_observations_results_and_refusals_as_text(read: Callable[[Any], str], said: Any, text: str) -> None:
    assert read(said) == text


BAD = [{"type": "text", "text": "nope"}]


@pytest.mark.parametrize(
    "observation",
    [
        {"error": {"error_type": "execution_error", "message": "nope"}, "result": None},
        {"error": "nope"},
        {"result": {"content": BAD, "is_error": True}},
        {"result": {"content": BAD, "isError": True}},
    ],
)
def test_tools_that_failed(observation: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=r"^nope$"):
        openenv.result_text(observation)


def test_the_server_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("openenv", reason="needs openenv")
    page = (Path(__file__).parents[4] / "docs" / "environments.md").read_text(encoding="utf-8")
    (tmp_path / "guess.py").write_text("#" + page.partition("```python\n# guess_server.py")[2].partition("```")[0])
    port = free_port()
    process = subprocess.Popen([sys.executable, str(tmp_path / "guess.py"), str(port)])
    try:
        wait_for(lambda: listens(port))
        source = find_environment(f"openenv:http://127.0.0.1:{port}", {"timeout_seconds": 20})
        assert source.answers_text
        environments = [source.start({}, seed) for seed in range(64)]
        for environment in environments:
            assert environment.opening == "Guess a number from 1 to 16."
            assert environment.step("much").text.startswith("Error: invalid literal for int()")
            low, high = 1, 16
            while not environment.ended():
                guess = (low + high) // 2
                low, high = (guess + 1, high) if environment.step(str(guess)).text == "higher" else (low, guess - 1)
            assert environment.reward() == 1.0
        for environment in environments[1:]:
            environment.close()
        process.kill()
        process.wait(10)
        with pytest.raises(EnvironmentFailedError, match="is gone"):
            environments[0].step("1")
    finally:
        process.kill()
        process.wait(10)
