"""Environment workers: conversations that have their processes elsewhere, and what becomes of them there."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burnish.distributed import environment_workers as workers_module
from burnish.distributed.environment_node import CONVERSATION, NUMBER, EnvironmentNode
from burnish.distributed.environment_workers import EnvironmentWorker, EnvironmentWorkers, Section
from burnish.distributed.network import TOKEN_BYTES, greet
from burnish.distributed.peers import Peer, RoleLostError
from burnish.environments.host import ConversationHost
from burnish.environments.process import ConversationProcess
from burnish.environments.warm_parent import Wanted, WarmParent
from burnish.errors import ConfigError, RolloutError

TOOLS = '''
import os, time
def where() -> str:
    """Which process, and which started it."""
    return f"{os.getpid()} {os.getppid()}"
def secret() -> str:
    """What."""
    return os.environ.get("BURNISH_SECRET", "nothing")
def hang() -> str:
    """For ever."""
    while True:
        time.sleep(1)
'''


class Near:
    """A `Peer` that is in this process."""

    def __init__(self, name: str) -> None:
        self.name, self.is_lost = name, False
        self.node = EnvironmentNode("127.0.0.1")

    def role(self, name: str, *, seconds: float) -> Near:
        assert (name, seconds > 0) == ("environments", True)
        return self

    def ask(self, method: str, *arguments: Any) -> Any:
        self.check_alive(what="conversations", seconds=1.0)
        return getattr(self.node, method)(*arguments)

    def check_alive(self, *, what: str, seconds: float) -> None:
        if self.is_lost:
            raise RoleLostError(f"{what}: process {self.name!r} ended", remedy="", process=self.name)

    def kill(self) -> None:
        self.is_lost = True
        self.node.close()

    close = kill


class Nodes:
    """Workers of a test, and what was said of them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.started: list[Near] = []
        self.fails: list[Exception] = []
        self.may_start = threading.Event()
        self.may_start.set()

    def worker(self, name: str, restarts: int = 3) -> EnvironmentWorker:
        def start(given_up: threading.Event) -> Peer:
            while not self.may_start.wait(0.05):
                if given_up.is_set():
                    raise RoleLostError("not needed any more", remedy="", process=name)
            if self.fails:
                raise self.fails.pop()
            self.started.append(Near(name))
            return self.started[-1]  # type: ignore[return-value]

        return EnvironmentWorker(start(threading.Event()), start, restarts=restarts, say=self.said.append)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def hosted(nodes: Nodes, tmp_path: Path) -> Iterator[Callable[..., tuple[ConversationHost, EnvironmentWorkers]]]:
    """A host whose conversations are at so many workers."""
    opened: list[tuple[ConversationHost, EnvironmentWorkers]] = []

    def begin(count: int, restarts: int = 3, **more: Any) -> tuple[ConversationHost, EnvironmentWorkers]:
        (tmp_path / "tools.py").write_text(TOOLS)
        names = ("where", "secret", "hang")
        host = ConversationHost(Wanted(tools=[f"{tmp_path / 'tools.py'}:{name}" for name in names], **more))
        workers = EnvironmentWorkers([nodes.worker(f"worker {number}", restarts) for number in range(count)])
        opened.append((host, workers))
        workers.take_over(host)
        return opened[-1]

    yield begin
    for host, workers in opened:
        workers.__exit__()
        host.close()


def heard(process: ConversationProcess, tool: str = "where") -> str:
    process.send({"do": "calls", "calls": [[0, tool, {}]], "limit": 1000, "seed": 0})
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while len(found) < 2:
        assert not process.gone, "it has ended"
        assert time.monotonic() < deadline
        select.select([process], [], [], 1)
        found += process.receive()
    return str(found[0]["text"])


def pids(process: ConversationProcess) -> tuple[int, int]:
    own, parent = heard(process).split()
    return int(own), int(parent)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def has_ended(process: ConversationProcess) -> bool:
    list(process.receive())
    return process.gone


Hosted = Callable[..., tuple[ConversationHost, EnvironmentWorkers]]


def test_conversations_are_where_the_fewest_are(hosted: Hosted) -> None:
    host, _ = hosted(2)
    held = [host.lease() for _ in range(6)]
    parents = [pids(process)[1] for process in held]
    assert sorted(parents.count(parent) for parent in set(parents)) == [3, 3]
    assert host.pid not in parents  # nothing is on this machine's own account
    for process in [process for process, parent in zip(held, parents, strict=True) if parent == parents[0]]:
        process.close()
    # Those that were ended count for a while, so three more are shared out.
    assert sorted(pids(host.lease())[1] for _ in range(2)) == sorted(set(parents))


def test_processes_are_used_again_and_ended_at_the_end(hosted: Hosted) -> None:
    host, workers = hosted(1)
    first = host.lease()
    own, parent = pids(first)
    host.give_back(first)
    again = host.lease()
    assert pids(again) == (own, parent)
    workers.__exit__()
    wait_until(lambda: not is_alive(own))
    wait_until(lambda: not is_alive(parent))


def test_a_conversation_that_hangs_is_ended(hosted: Hosted) -> None:
    host, _ = hosted(1)
    process = host.lease()
    own, parent = pids(process)
    process.send({"do": "calls", "calls": [[0, "hang", {}]], "limit": 1000, "seed": 0})
    time.sleep(0.2)
    assert is_alive(own)
    process.close()
    wait_until(lambda: not is_alive(own))
    assert is_alive(parent)


def test_a_conversation_that_is_over_before_it_begins(tmp_path: Path) -> None:
    """The word that ends it may overtake the connection that begins it."""
    (tmp_path / "tools.py").write_text(TOOLS)
    node = EnvironmentNode("127.0.0.1")
    address, token = node.start(Wanted(tools=[f"{tmp_path / 'tools.py'}:where"]), {})
    with greet(address, token, b"l", seconds=5.0) as line:
        line.sendall(NUMBER.pack(7))
        time.sleep(0.2)
        with greet(address, token, CONVERSATION, seconds=5.0) as over:
            over.sendall(NUMBER.pack(7))
            assert over.recv(1) == b""
        with greet(address, token, CONVERSATION, seconds=5.0) as other:
            other.sendall(NUMBER.pack(8))
            other.settimeout(0.5)
            with pytest.raises(TimeoutError):
                other.recv(1)  # it is served, and says nothing before it is asked
    node.close()


def test_a_lost_worker_takes_its_conversations_with_it_and_no_others(hosted: Hosted, nodes: Nodes) -> None:
    host, workers = hosted(2)
    held = [host.lease() for _ in range(4)]
    before = [pids(process) for process in held]
    nodes.may_start.clear()
    nodes.started[0].kill()
    wait_until(lambda: len(nodes.said) == 1)
    lost = [process for process in held if has_ended(process)]
    assert len(lost) == 2
    assert [pids(process) for process in held if process not in lost] == [
        at for process, at in zip(held, before, strict=True) if process not in lost
    ]
    survivor = {parent for process, (_, parent) in zip(held, before, strict=True) if process not in lost}
    assert {pids(host.lease())[1] for _ in range(3)} == survivor  # nobody waits for the one that is started
    assert nodes.said == [
        "conversations: process 'worker 0' ended; its conversations have failed, and it is started again"
    ]
    assert workers.standing() == [("worker 0", "is started again"), ("worker 1", "holds conversations")]
    for process in lost:
        process.close()
    nodes.may_start.set()
    wait_until(lambda: ("worker 0", "holds conversations") in workers.standing())
    assert pids(host.lease())[1] not in survivor
    assert host.take_restarts() == 1
    assert host.take_restarts() == 0


def test_the_only_worker_is_awaited(hosted: Hosted, nodes: Nodes) -> None:
    host, _ = hosted(1)
    parent = pids(host.lease())[1]
    nodes.started[0].kill()
    assert pids(host.lease())[1] != parent
    assert len(nodes.started) == 2


def test_a_worker_is_started_again_so_often(hosted: Hosted, nodes: Nodes) -> None:
    host, workers = hosted(1, restarts=1)
    nodes.started[0].kill()
    heard(host.lease())
    nodes.started[1].kill()
    with pytest.raises(RolloutError, match="no environment worker left"):
        host.lease()
    assert "it is not started again for now: 1 restarts an hour is the limit" in nodes.said[-1]
    assert workers.standing() == [("worker 0", "lost")]


def test_a_worker_that_cannot_be_started_is_tried_again(
    hosted: Hosted, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised, the others go on; it is tried again after a while, within the limit of restarts."""
    host, workers = hosted(2)
    survivor = {pids(host.lease())[1] for _ in range(2)}
    nodes.fails.append(OSError("no room for a process"))
    nodes.started[0].kill()
    wait_until(lambda: nodes.said[-1:] == ["worker 0 cannot be started again: no room for a process"])
    assert workers.standing() == [("worker 0", "lost"), ("worker 1", "holds conversations")]
    assert {pids(host.lease())[1] for _ in range(3)} < survivor
    monkeypatch.setattr(workers_module, "RETRY_SECONDS", 0.0)
    wait_until(lambda: workers.standing()[0] == ("worker 0", "holds conversations"))


def test_a_worker_that_cannot_load_the_tools_any_more(hosted: Hosted, nodes: Nodes, tmp_path: Path) -> None:
    host, workers = hosted(2)
    (tmp_path / "tools.py").unlink()
    nodes.started[0].kill()
    wait_until(lambda: "cannot be started again" in "".join(nodes.said))
    assert "there is no file" in nodes.said[-1]
    assert workers.standing()[0] == ("worker 0", "lost")
    heard(host.lease())


def test_a_place_where_all_fail_does_not_draw_the_others(hosted: Hosted) -> None:
    """Ten conversations, those at the first worker ended at once: it begins every second one all the same."""
    host, _ = hosted(2)
    parents = []
    for _ in range(10):
        process = host.lease()
        parents.append(pids(process)[1])
        if parents[-1] == parents[0]:
            process.close()
    assert parents.count(parents[0]) == 5


def test_nobody_begins_at_the_end_of_the_run(hosted: Hosted) -> None:
    host, workers = hosted(1)
    workers.__exit__()
    with pytest.raises(RolloutError, match="cannot begin any more"):
        host.lease()


def test_a_machine_that_has_vanished(hosted: Hosted, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes back from it, not even the end of a connection: conversations end when the worker is given up."""
    host, _ = hosted(1)
    process = host.lease()
    heard(process)
    monkeypatch.setattr(nodes.started[0].node, "close", lambda: None)
    nodes.may_start.clear()
    nodes.started[0].kill()
    wait_until(lambda: has_ended(process))
    nodes.may_start.set()


def test_connections_that_say_nothing_hold_up_nobody(hosted: Hosted, nodes: Nodes, tmp_path: Path) -> None:
    node = nodes
    host, _ = hosted(1)
    desk = node.started[0].node._desks[0]
    silent = [socket.create_connection(desk.listener.getsockname()[:2]) for _ in range(100)]
    process = host.lease()
    heard(process)  # in the seconds that strangers have to say who they are
    for one in silent:
        one.close()


def test_a_warm_parent_that_is_killed_over_there(hosted: Hosted) -> None:
    host, _ = hosted(1)
    process = host.lease()
    own, parent = pids(process)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: not is_alive(own))
    assert pids(host.lease())[1] != parent
    wait_until(lambda: host.take_restarts() == 1)


def test_a_warm_parent_that_always_ends(hosted: Hosted, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = hosted(1, restarts=0)

    def broken(self: WarmParent, channel: socket.socket) -> int:
        raise RolloutError("it has ended 6 times in a row", remedy="look")

    monkeypatch.setattr(WarmParent, "adopt", broken)
    process = host.lease()
    assert select.select([process], [], [], 20)[0]
    assert has_ended(process)
    wait_until(lambda: bool(nodes.said))
    assert nodes.said[0].startswith("worker 0: it has ended 6 times in a row; its conversations have failed")
    with pytest.raises(RolloutError, match="no environment worker left"):
        host.lease()


def test_strangers_are_turned_away(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    node = EnvironmentNode("127.0.0.1")
    address, token = node.start(Wanted(tools=[f"{tmp_path / 'tools.py'}:where"]), {})
    assert len(token) == TOKEN_BYTES
    with greet(address, bytes(TOKEN_BYTES), CONVERSATION, seconds=5.0) as stranger:
        stranger.sendall(NUMBER.pack(1))
        assert _said(stranger) == b""
    with greet(address, token, b"x", seconds=5.0) as unknown:
        assert _said(unknown) == b""
    node.close()


def _said(stream: socket.socket) -> bytes:
    try:
        return stream.recv(1)
    except ConnectionResetError:
        return b""


def test_variables_travel(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's machine does not know them."""
    monkeypatch.setenv("BURNISH_SECRET", "of the controller")
    host, _ = hosted(1, variables=["BURNISH_SECRET"])
    monkeypatch.delenv("BURNISH_SECRET")
    assert heard(host.lease(), "secret") == "of the controller"


def test_what_cannot_be_loaded_there_is_refused(nodes: Nodes) -> None:
    worker = nodes.worker("worker 0")
    with pytest.raises(ConfigError, match=r"worker 0: on \S+: .*no_such_module"):
        worker.add(Section(Wanted(tools=["no_such_module:tool"]), {}))
    worker.close()
    nodes.started[0].kill()
