"""Processes of conversations: lent, used again, ended; and nothing of them is left."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import leaving_nothing, runs, wait_for

from burnish.agents.environments import warm_parent as parent_module
from burnish.agents.environments.warm_parent import ConversationHost, ConversationProcess, Wanted
from burnish.errors import ConfigError, RolloutError

TOOLS = '''
import os, subprocess
def pid() -> int:
    """Who."""
    return os.getpid()
def secret() -> str:
    """What."""
    return os.environ.get("BURNISH_SECRET", "nothing") + " " + os.environ.get("BURNISH_OTHER", "nothing")
def start(seconds: float) -> str:
    """Leave a program."""
    return str(subprocess.Popen(["sleep", str(seconds)]).pid)
def ended() -> str:
    """Wait for it, and leave it to be collected."""
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    return "ended"
'''
Make = Callable[..., ConversationHost]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[ConversationHost] = []

    def start(text: str = TOOLS, *, names: tuple[str, ...] = ("pid",), **more: Any) -> ConversationHost:
        (tmp_path / "tools.py").write_text(text)
        made.append(ConversationHost(Wanted(tools=[f"{tmp_path / 'tools.py'}:{name}" for name in names], **more)))
        return made[-1]

    yield start
    for host in made:
        host.close()


def ask(process: ConversationProcess, tool: str = "pid", *, clean: list[bool] | None = None, **arguments: Any) -> str:
    process.send({"do": "call", "name": tool, "arguments": arguments, "limit": 1000, "seed": 0})
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while not found:
        assert not process.gone
        assert time.monotonic() < deadline
        select.select([process], [], [], 1)
        found += process.receive()
    if clean is not None:
        clean.append(found[0]["clean"])
    return str(found[0]["text"])


@pytest.mark.slow
def test_processes_are_used_again(make: Make) -> None:
    host = make()
    first, second = host.lease(), host.lease()
    pids = {ask(first), ask(second)}
    assert len(pids) == 2
    host.give_back(first)
    host.give_back(second)
    again = [host.lease(), host.lease()]
    assert {ask(process) for process in again} == pids
    third = host.lease()
    assert ask(third) not in pids
    third.close()
    third.close()


def test_a_process_that_has_ended_is_not_lent(make: Make) -> None:
    host = make()
    process = host.lease()
    pid = int(ask(process))
    host.give_back(process)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: process.has_said_anything())
    assert int(ask(host.lease())) != pid
    assert process.fileno() == -1


@pytest.mark.slow
def test_nothing_is_left_when_it_is_closed(make: Make) -> None:
    with leaving_nothing():
        host = make()
        held = [host.lease() for _ in range(5)]
        assert len({ask(process) for process in held}) == 5
        for process in held[:3]:
            host.give_back(process)
        for process in held[3:]:
            process.close()
        host.close()
        host.close()


@pytest.mark.slow
def test_a_process_says_whether_a_program_that_a_tool_started_still_runs(make: Make) -> None:
    for others, said in ((1, [False, False, False]), (0, [False, True])):  # an other one still runs
        process, clean = make(names=("start", "ended")).lease(), list[bool]()
        for _ in range(others):
            ask(process, "start", clean=clean, seconds=60)
        os.kill(int(ask(process, "start", clean=clean, seconds=60)), signal.SIGTERM)
        ask(process, "ended", clean=clean)
        assert clean == said


@pytest.mark.parametrize(
    ("text", "wanted", "why"),
    [
        ("def pid(:", {}, "its file fails: SyntaxError"),
        ("raise RuntimeError('no key')", {}, "RuntimeError: no key"),
        ("import sys; sys.exit(3)", {}, "SystemExit: 3"),
        (TOOLS, {"names": ("pit",)}, "has no pit"),
        (TOOLS, {"variables": ("BURNISH_NOT_SET",)}, "conversation.variables names BURNISH_NOT_SET, which is not set"),
        (TOOLS, {"environment": "nothing"}, "conversation.environment is 'nothing', which names no class"),
        (TOOLS, {"options": {"a": object()}}, "conversation.environment_options cannot be passed on"),
        ("import time; time.sleep(60)", {"start_seconds": 0.5}, "were not imported within 0.5 s"),
    ],
)
def test_what_cannot_be_started_is_refused(make: Make, text: str, wanted: dict[str, Any], why: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=why) as caught:
        make(text, **wanted)
    assert caught.value.remedy
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_parent_that_ends_while_it_imports_is_named(make: Make) -> None:
    with pytest.raises(RolloutError, match=r"starts conversations \(conversation\) has ended \(exit status 4\)"):
        make("import os; os._exit(4)")


@pytest.mark.slow
def test_only_named_variables_are_passed_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNISH_SECRET", "key")
    monkeypatch.setenv("BURNISH_OTHER", "key")
    assert ask(make(names=("secret",), variables=("BURNISH_SECRET",)).lease(), "secret") == "key nothing"


@pytest.mark.slow
def test_options_are_not_on_the_command_line(make: Make, tmp_path: Path) -> None:
    text = "class Desk:\n    def __init__(self, key): ...\n    def reset(self): ...\n"
    host = make(text, names=(), environment=f"{tmp_path / 'tools.py'}:Desk", options={"key": "hush"})
    assert b"hush" not in Path(f"/proc/{host.parent.pid}/cmdline").read_bytes()


@pytest.mark.slow
def test_the_parent_is_started_again_and_not_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make()
    monkeypatch.setattr(parent_module, "_MOST_SHORT_LIVES", 2)
    pids = {host.parent.pid}
    for _ in range(2):
        process = host.lease()
        host.give_back(process)
        os.kill(host.parent.pid, signal.SIGKILL)
        wait_for(process.has_said_anything)
        assert int(ask(host.lease())) > 0
        pids.add(host.parent.pid)
    assert len(pids) == 3
    assert host.parent.take_restarts() == 2
    assert host.parent.take_restarts() == 0
    os.kill(host.parent.pid, signal.SIGKILL)
    with pytest.raises(RolloutError, match=r"has ended \(killed by SIGKILL\), 3 times in a row"):
        wait_for(lambda: host.lease().close() is not None)


@pytest.mark.slow
def test_a_parent_that_lived_long_may_be_started_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_module, "_MOST_SHORT_LIVES", 0)
    monkeypatch.setattr(parent_module, "_SHORT_LIFE_SECONDS", 0.0)
    host = make()
    os.kill(host.parent.pid, signal.SIGKILL)
    wait_for(lambda: not runs(host.parent.pid))
    assert int(ask(host.lease())) > 0


@pytest.mark.slow
def test_without_room_for_a_process_its_conversation_ends(make: Make) -> None:
    """The parent goes on: the next one may have room."""
    text = "import os\nfork, count = os.fork, iter(range(100))\n"
    text += "os.fork = lambda: fork() if next(count) else (_ for _ in ()).throw(OSError(11, 'no room'))\n" + TOOLS
    host = make(text)
    first = host.lease()
    assert select.select([first], [], [], 20)[0]
    assert list(first.receive()) == []
    assert first.gone
    assert int(ask(host.lease())) > 0
    assert host.parent.take_restarts() == 0


LIMITS = """
import resource
from burnish.agents.environments.warm_parent import allow_connections, no_more_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2000))
for conversations in (200, 100, 5000):
    allow_connections(conversations)
    print(resource.getrlimit(resource.RLIMIT_NOFILE))
print(no_more_files().message)
"""


@pytest.mark.slow
def test_as_many_connections_as_the_system_allows() -> None:
    """512 are for other files, and a conversation may have five: 200 need 1,512, and 5,000 more than there may be."""
    done = subprocess.run([sys.executable, "-c", LIMITS], capture_output=True, text=True, timeout=60, check=True)
    *limits, message = done.stdout.splitlines()
    assert limits == ["(1512, 2000)", "(1512, 2000)", "(2000, 2000)"]
    assert message.startswith("this system allows the process no more than 2,000 open files")
