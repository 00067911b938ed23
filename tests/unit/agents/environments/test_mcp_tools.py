"""Tools of MCP servers: schemas and results as ours, and servers of a few lines that fail in various ways."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from serving import free_port, listens
from watching import children, leaving_nothing, wait_for

from burnish.agents.environments.mcp_tools import McpServer, McpTools, result_of_call, schema_of_tool
from burnish.agents.tools.calls import ToolCall, ToolError
from burnish.agents.tools.checking import check_call
from burnish.errors import ConfigError
from burnish.outside.supervise import is_alive

needs_sdk = pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="needs burnish[mcp]")

SERVER = """
import asyncio, os, sys, time
from pathlib import Path
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("small")
count = 0

def {name}(a: int, b: int = 1) -> int:
    "Add two numbers."
    return a + b

def fail(why: str) -> str:
    "Fail."
    raise ToolError(why)

async def wait(seconds: float) -> str:
    "Wait."
    await asyncio.sleep(seconds)
    return "waited"
def hang() -> str:
    "Keep the server busy, so that it hears nothing."
    time.sleep(1000)
    return ""

def counted() -> int:
    "Count the calls."
    global count
    count += 1
    return count
def die_once(mark: str) -> str:
    "End the server if there is no such file yet."
    if Path(mark).exists():
        return "survived"
    Path(mark).touch()
    os._exit(1)
def die() -> str:
    "End the server."
    os._exit(1)

def variable(name: str) -> str:
    "Read a variable."
    return os.environ.get(name, "not there")

for tool in ({name}, fail, wait, hang, counted, die_once, die, variable):
    server.tool()(tool)
if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, ...]]:
    pytest.importorskip("mcp", reason="needs burnish[mcp]")

    def of(name: str = "add") -> tuple[str, ...]:
        path = tmp_path_factory.mktemp("mcp") / "server.py"
        path.write_text(SERVER.replace("{name}", name))
        return (sys.executable, str(path))

    return of


@pytest.fixture(scope="module")
def tools(command: Callable[[], tuple[str, ...]]) -> Iterator[McpTools]:
    with closing(McpTools([McpServer(command())])) as opened:
        yield opened


def test_tools_are_called(tools: McpTools) -> None:
    assert tools.call("one", "add", {"a": 2, "b": 3}, 60) == "5"
    assert tools.call("one", "add", {"a": 2}, 60) == "3"
    properties = {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}}
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    function = {"name": "add", "description": "Add two numbers.", "parameters": parameters}
    assert {"type": "function", "function": function} in tools.schemas
    assert check_call(ToolCall("add", {"b": 3}), tools.schemas) is not None
    assert check_call(ToolCall("add", {"a": 3}), tools.schemas) is None


def test_what_fails_is_said_in_the_servers_words(tools: McpTools) -> None:
    with pytest.raises(ToolError, match="not today"):
        tools.call("one", "fail", {"why": "not today"}, 60)
    with pytest.raises(ToolError, match="valid integer"):
        tools.call("one", "add", {"a": "x"}, 60)
    with pytest.raises(ToolError, match="there is no tool 'subtract'"):
        tools.call("one", "subtract", {}, 60)


def test_a_call_has_a_deadline_and_others_go_on_meanwhile(tools: McpTools) -> None:
    slow: list[object] = []
    thread = threading.Thread(target=lambda: slow.append(tools.call("slow", "wait", {"seconds": 1.0}, 60)))
    thread.start()
    assert tools.call("fast", "add", {"a": 1}, 60) == "2"
    assert slow == []
    with pytest.raises(TimeoutError, match=r"no answer to wait within 0\.1 s"):
        tools.call("one", "wait", {"seconds": 30.0}, 0.1)
    thread.join(60)
    assert slow == ["waited"]


def test_a_lost_connection_is_made_again_once(tools: McpTools, tmp_path: Path) -> None:
    before = int(str(tools.call("one", "counted", {}, 60)))
    assert int(str(tools.call("two", "counted", {}, 60))) == before + 1  # all conversations share the session
    assert tools.call("one", "die_once", {"mark": str(tmp_path / "mark")}, 60) == "survived"
    assert tools.call("one", "counted", {}, 60) == "1"
    with pytest.raises(ConnectionError, match="ends the connection when die is called"):
        tools.call("one", "die", {}, 60)
    assert tools.call("one", "add", {"a": 1}, 60) == "2"


def test_two_servers(command: Callable[..., tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_TEST_SHOWN", "shown")
    monkeypatch.setenv("BURNISH_TEST_HIDDEN", "hidden")
    first, second = command(), command("subtract")
    with pytest.raises(ConfigError, match="two MCP servers have a tool named 'fail'") as caught:
        McpTools([McpServer(first), McpServer(second)])
    assert first[1][:40] in str(caught.value)
    with closing(McpTools([McpServer(second, environment=("BURNISH_TEST_SHOWN",))])) as opened:
        assert opened.call("one", "variable", {"name": "BURNISH_TEST_SHOWN"}, 60) == "shown"
        assert opened.call("one", "variable", {"name": "BURNISH_TEST_HIDDEN"}, 60) == "not there"


def test_nothing_is_left(command: Callable[..., tuple[str, ...]]) -> None:
    before = children()
    with leaving_nothing():
        opened = McpTools([McpServer(command())])
        assert children() > before
        opened.end("one")
        opened.close()
        opened.close()
    with pytest.raises(ConnectionError, match="have been left"):
        opened.call("one", "add", {"a": 1}, 60)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_a_busy_server_ends_with_a_run_that_is_killed(command: Callable[..., tuple[str, ...]]) -> None:
    code = f"""if True:
        import threading, time
        from burnish.agents.environments.mcp_tools import McpServer, McpTools
        tools = McpTools([McpServer({command()!r})])
        threading.Thread(target=tools.call, args=("one", "hang", {{}}, 60)).start()
        time.sleep(1)
        print("busy", flush=True)
        time.sleep(60)
    """
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "busy\n"
    servers = children(run.pid)
    assert servers
    run.kill()
    wait_for(lambda: not any(map(is_alive, servers)), 10)
    run.wait()


@needs_sdk
@pytest.mark.parametrize(
    ("server", "why"),
    [
        (McpServer((sys.executable, "-c", "import sys; sys.exit('no such option')")), "no such option"),
        (McpServer(("burnish-there-is-no-such-program",)), "FileNotFoundError"),
        (McpServer(url="http://127.0.0.1:9/mcp?key=secret"), "127.0.0.1:9/mcp cannot be used: .*onnect"),
    ],
)
def test_a_server_that_does_not_start_is_named(server: McpServer, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        McpTools([server])
    assert "secret" not in str(caught.value)


@needs_sdk
def test_a_server_that_says_nothing_is_not_waited_for() -> None:
    silent = McpServer((sys.executable, "-c", "import sys; sys.stdin.read()"))
    with pytest.raises(ConfigError, match=r"did not list its tools within 0\.5 s"):
        McpTools([silent], start_seconds=0.5)


def test_over_http(command: Callable[..., tuple[str, ...]]) -> None:
    port = free_port()

    def started() -> subprocess.Popen[bytes]:
        server = subprocess.Popen([*command(), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: listens(port))
        return server

    server = started()
    opened = McpTools([McpServer(url=f"http://127.0.0.1:{port}/mcp")])
    try:
        assert opened.call("one", "add", {"a": 1}, 60) == "2"
        server.kill()
        server.wait()
        with pytest.raises(ConnectionError):
            opened.call("one", "add", {"a": 1}, 60)
        server = started()
        assert opened.call("one", "add", {"a": 1}, 60) == "2"
    finally:
        opened.close()
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "needs either command or url"),
        ({"command": ("a",), "url": "http://h/mcp"}, "needs either command or url"),
        ({"url": "ftp://h/mcp"}, "address of an MCP server is 'ftp://h/mcp'"),
        ({"url": "http://me:secret@h/mcp"}, "address of an MCP server is 'h/mcp'"),
        ({"command": ("a",), "token_variable": "PATH"}, "field of another kind"),
        ({"url": "http://h/mcp", "environment": ("PATH",)}, "field of another kind"),
        ({"command": ("a",), "environment": ("BURNISH_NOT_SET",)}, "BURNISH_NOT_SET, of the MCP server a, is not set"),
    ],
)
def test_fields_that_do_not_fit(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        McpServer(**fields)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("mcp") is not None, reason="the SDK is installed")
def test_without_the_sdk_the_extra_is_named() -> None:
    with pytest.raises(ConfigError, match=r"burnish\[mcp\]"):
        McpTools([McpServer(("a",))])


def test_schemas_lose_titles_and_references() -> None:
    item = {"title": "Item", "type": "object", "properties": {"title": {"title": "Title", "type": "string"}}}
    loop = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Loop"}}}
    given = {
        "type": "object",
        "title": "arguments",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "title": "Items"},
            "item": {"$ref": "#/$defs/Item", "description": "One."},
            "loop": {"$ref": "#/$defs/Loop"},
            "gone": {"$ref": "#/$defs/Gone"},
        },
        "required": ["items"],
        "additionalProperties": False,
        "$defs": {"Item": item, "Loop": loop},
    }
    found: Any = schema_of_tool({"name": "order", "inputSchema": given})["function"]
    assert (found["name"], found["description"]) == ("order", "")
    parameters = found["parameters"]
    assert (set(parameters), parameters["required"]) == ({"type", "properties", "required"}, ["items"])
    plain = {"type": "object", "properties": {"title": {"type": "string"}}}
    properties = parameters["properties"]
    assert properties["items"] == {"type": "array", "items": plain}
    assert properties["item"] == {**plain, "description": "One."}
    assert properties["gone"] == {}
    assert "$ref" not in str(properties["loop"])
    bare: Any = schema_of_tool({"name": "f", "inputSchema": {"type": "object"}})["function"]
    assert bare["parameters"] == {"type": "object", "properties": {}}


def test_a_schema_that_refers_to_itself_stays_small() -> None:
    node = {"type": "object", "properties": {side: {"$ref": "#/$defs/Node"} for side in ("left", "middle", "right")}}
    given = {"properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    found = json.dumps(schema_of_tool({"name": "f", "inputSchema": given}))
    assert found.count("left") == 1 + 3  # the root, and the nodes below it
    assert "$ref" not in found


@pytest.mark.parametrize("others", [True, {"type": "string"}])
def test_arguments_beyond_the_named_ones_are_taken_where_the_server_takes_them(others: object) -> None:
    given = {"properties": {"x": {"type": "string"}}, "additionalProperties": others}
    function: Any = schema_of_tool({"name": "f", "inputSchema": given})["function"]
    assert function["parameters"]["additionalProperties"] == others


TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ({"content": [TEXT, {"type": "text", "text": "b"}], "structuredContent": {"x": 1}}, "a\nb"),
        ({"content": [], "structuredContent": {"x": 1}}, {"x": 1}),
        ({"content": []}, ""),
        ({"content": [TEXT, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]}, "a\n[image: image/png]"),
        ({"content": [{"type": "audio", "data": "AAAA"}]}, "[audio]"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}]}, "inside"),
        ({"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AA"}}]}, "[resource: file:///a]"),
        ({"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]}, "[resource_link: file:///a]"),
    ],
)
def test_results(result: dict[str, object], found: object) -> None:
    assert result_of_call(result) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(("content", "why"), [([TEXT], "^a$"), ([], "does not say why")])
def test_results_that_are_errors(content: list[object], why: str) -> None:
    with pytest.raises(ToolError, match=why):
        result_of_call({"content": content, "isError": True})  # type: ignore[dict-item]
