"""The tool `python`: what stays and what does not, what the model is told, and that conversations are apart."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from watching import leaving_nothing, wait_for

from burnish.agents.environments.python_tool import PythonTool, PythonToolOptions, as_program, open_python_tool
from burnish.agents.tools.calls import ServedTools, ToolCall, ToolError
from burnish.agents.tools.checking import check_call
from burnish.errors import ConfigError, SandboxError
from burnish.sandbox.job import Output
from burnish.sandbox.remote import RemoteSandbox
from burnish.sandbox.sessions import Sessions

SECONDS = 60.0


@pytest.fixture(scope="module")
def tier() -> str:
    for name in ("namespaces", "landlock"):
        with suppress(SandboxError):
            Sessions(name).close()  # type: ignore[arg-type]
            return name
    pytest.skip("no tier confines programs here")


def opened(tier: str, state: Any = "fresh", seconds: float = SECONDS, **more: int) -> closing[PythonTool]:
    return closing(open_python_tool(PythonToolOptions(state, seconds=seconds), tier=tier, **more))


@pytest.fixture(scope="module")
def fresh(tier: str) -> Iterator[PythonTool]:
    with opened(tier) as tool:
        yield tool


@pytest.fixture(scope="module")
def kept(tier: str) -> Iterator[PythonTool]:
    with opened(tier, "kept") as tool:
        yield tool


def ask(tool: ServedTools, code: str, conversation: int = 1, seconds: float = SECONDS) -> str:
    return str(tool.call(conversation, "python", {"code": code}, seconds + 1.0))


def test_what_the_model_is_offered(fresh: PythonTool, kept: PythonTool) -> None:
    for tool, words in ((fresh, "Every call begins anew"), (kept, "is there in the calls that follow")):
        (schema,) = tool.schemas
        function: Any = schema["function"]
        assert function["name"] == "python"
        assert words in function["description"]
        assert check_call(ToolCall("python", {"code": "1"}), tool.schemas) is None
        assert check_call(ToolCall("python", {"source": "1"}), tool.schemas) is not None
        for name, arguments in (("python", {}), ("python", {"code": 3}), ("perl", {"code": "1"})):
            with pytest.raises(ToolError, match="call the tool python with one text"):
                tool.call(1, name, arguments, SECONDS)  # type: ignore[arg-type]


def test_fresh_keeps_nothing(fresh: PythonTool) -> None:
    assert ask(fresh, "x = 20\nprint('found')\nx + 1") == "found\n21"
    assert ask(fresh, "x").endswith("NameError: name 'x' is not defined")
    assert ask(fresh, "y = 1") == "[no output]"
    assert ask(fresh, "import os\nprint('before')\nos._exit(4)") == "before\n[The process ended itself with status 4.]"
    fresh.end(1)


def test_kept_keeps_all_for_one_conversation(kept: PythonTool) -> None:
    assert ask(kept, "x = 20\ndef f(): return x + 1", 1) == "[no output]"
    assert ask(kept, "x = 30", 2) == "[no output]"
    assert ask(kept, "f()", 1) == "21"
    assert ask(kept, "f()", 2).endswith("NameError: name 'f' is not defined")
    kept.end(1)
    assert ask(kept, "x", 1).endswith("NameError: name 'x' is not defined")
    assert ask(kept, "x", 2) == "30"
    for conversation in (1, 2, 3):
        kept.end(conversation)


def test_the_model_is_told_that_a_state_is_gone(kept: PythonTool) -> None:
    ask(kept, "x = 1")
    end = "What was defined in it is gone. The next call begins anew.]"
    assert ask(kept, "import os\nprint('a')\nos._exit(4)") == f"a\n[The process ended itself with status 4. {end}"
    assert ask(kept, "x").endswith("NameError: name 'x' is not defined")
    if "can't start new thread" in ask(kept, "import os, threading\nthreading.Timer(.5, os._exit, (5,)).start()"):
        kept.end(1)
        pytest.skip("here, the sandbox allows no threads (root, whose Python only root can read)")
    select.select([kept._kept[1]._cells], [], [], 60)
    said = ask(kept, "print('again')")
    assert said == "[Before this call, the process ended itself with status 5. What was defined in it is gone.]\nagain"
    kept.end(1)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_time_is_limited(tier: str, state: str) -> None:
    with opened(tier, state, seconds=1.0) as tool:
        loss = " What was defined in it is gone. The next call begins anew." if state == "kept" else ""
        assert ask(tool, "print('a')\nwhile True: pass") == f"a\n[The process was stopped after 1 s.{loss}]"
        assert ask(tool, "1 + 1") == "2"
        with pytest.raises(TimeoutError):
            tool.call(1, "python", {"code": "while True: pass"}, 0.3)
        assert ask(tool, "1 + 1") == "2"
    with pytest.raises(SandboxError, match="has been closed"):
        ask(tool, "1")


@pytest.mark.slow
def test_memory_and_output_are_limited(tier: str) -> None:
    options = PythonToolOptions(seconds=SECONDS, memory_mb=64, output_bytes=100)
    with closing(open_python_tool(options, tier=tier)) as tool:
        assert ask(tool, "bytearray(200 << 20)").endswith("MemoryError")
        assert ask(tool, "print('x' * 300)\n7") == "x" * 100 + "\n[201 more bytes were printed]\n7"


@pytest.mark.slow
@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_no_more_processes_than_are_allowed(tier: str, state: str) -> None:
    with opened(tier, state, conversations=1, at_once=1) as tool, ThreadPoolExecutor(1) as thread:
        slow = thread.submit(ask, tool, "import time\ntime.sleep(1)\n1", 1)
        wait_for(lambda: bool(tool._sessions._open))
        with pytest.raises(TimeoutError, match="all 1 sessions"):
            tool.call(2, "python", {"code": "1"}, 0.1)
        assert slow.result(60) == "1"
        tool.end(1)
        assert ask(tool, "1 + 1", 2) == "2"


def test_a_conversation_that_ends_stops_its_call(kept: PythonTool) -> None:
    ask(kept, "import time", 7)
    with ThreadPoolExecutor(1) as thread:
        said = thread.submit(ask, kept, "print('a')\ntime.sleep(50)", 7)
        wait_for(lambda: os.fstat(kept._kept[7]._output).st_size > 0)
        kept.end(7)
        assert said.result(60).startswith("a\n[The process ")


@pytest.mark.slow
def test_nothing_is_left(tier: str) -> None:
    for state in ("fresh", "kept"):
        with leaving_nothing(), opened(tier, state) as tool:
            for conversation in range(3):
                ask(tool, "x = 1", conversation)
            tool.end(0)
            tool.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"state": "keep"}, "has state 'keep'\n  -> did you mean 'kept'"),
        ({"seconds": 0}, "has seconds 0, which has to be positive"),
        ({"memory_mb": -1}, "has memory_mb -1"),
        ({"output_bytes": 0}, "has output_bytes 0"),
    ],
)
def test_options_that_are_not_possible(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PythonToolOptions(**options)  # type: ignore[arg-type]


def test_a_sandbox_elsewhere_keeps_no_state() -> None:
    with pytest.raises(ConfigError, match=r"keeps its state only on this machine, and sandbox\.url is http://h"):
        open_python_tool(PythonToolOptions("kept"), url="http://h")
    with pytest.raises(ConfigError, match=r"sandbox\.tier is 'landlock', but programs run at http://h"):
        open_python_tool(PythonToolOptions(), url="http://h", tier="landlock")


@pytest.mark.parametrize(
    ("code", "found", "status"),
    [
        ("print('é')\nx = 2\nx + 1", "é\n3", 0),
        ("def f(): return 1 / 0\nf()", "in f\n    def f(): return 1 / 0\n", 1),
        ("print('x' * 300)", "x" * 100 + "\n[201 more bytes were printed]\n", 0),
        ("if __name__ == '__main__': print('main')", "main\n", 0),
        ("'{braces} {0} {{}} %s'", "'{braces} {0} {{}} %s'", 0),
    ],
)
def test_the_program_for_a_sandbox_elsewhere(code: str, found: str, status: int) -> None:
    words = [sys.executable, "-I", "-c", as_program(code, 100)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (status, "")
    assert found in ran.stdout
    assert "burnish" not in ran.stdout


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (Output("a\n", "", 0, 0.1), "a"),
        (Output("a\nTraceback ...\nE", "", 1, 0.1), "a\nTraceback ...\nE"),
        (Output("a", "", -9, 5.0, timed_out=True), "a\n[The process was stopped after 5 s.]"),
        (Output("", "x\nSegmentation fault", -11, 0.1), "[The process ended with status -11: Segmentation fault.]"),
        (Output("x" * 100_000, "", 0, 0.1), "x" * (8192 + (1 << 14))),
    ],
)
def test_fresh_calls_elsewhere(output: Output, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(return_value=output)
    monkeypatch.setattr(RemoteSandbox, "_most_allowed", lambda self: None)
    monkeypatch.setattr(RemoteSandbox, "output", asked)
    with closing(open_python_tool(PythonToolOptions(seconds=5.0), url="http://127.0.0.1:9")) as tool:
        assert tool.call(1, "python", {"code": "1"}, 20.0) == found
        assert asked.call_args.args[1].seconds == 5.0
        assert 14.0 < asked.call_args.kwargs["wait_seconds"] <= 15.0
        if output.timed_out:
            with pytest.raises(TimeoutError):
                tool.call(1, "python", {"code": "1"}, 2.0)
