"""Whatever ends a family of processes ends all of it: one table of families and of ways to end them.

Each case runs a program that opens the family and lets code of a user's run in it. Where it can, that code leaves a
process that has left its session and asked to outlive its parent. Then something happens to the program or to the
family, and no process of it is left.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from watching import children, runs, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt the orphans below it"),
]

LEAVES = """
import ctypes, os, pathlib, time
def leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0)
            pathlib.Path(FILE + ".new").write_text(str(os.getpid()))
            os.rename(FILE + ".new", FILE)
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()
"""
WORK = """
import re
def work(response: str = "") -> str:
    \"\"\"Leave a process, and hold the interpreter.\"\"\"
    leave()
    re.match(r"(a+)+$", "a" * 60 + "b")
"""
ROLES = """
import contextlib, pathlib, time
class Role:
    def work(self):
        pathlib.Path("at work").touch()
        time.sleep(600)
@contextlib.contextmanager
def roles():
    yield {"policy": Role()}
"""
PROGRAM = """
import os, pathlib, signal, sys, threading, time
sys.path.insert(0, os.getcwd())
sys.excepthook = lambda kind, error, _: print(f"{{kind.__name__}}: {{error}}", flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
{opening}
print("open", flush=True)
for line in sys.stdin:
    if line == "fork\\n" and os.fork() == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    if line == "close\\n":
        close()
    print("done", flush=True)
"""
POOL = """
from burnish.rewards.loading import functions_at_hand
from burnish.rewards.loading import RewardSpec
from burnish.rewards.pool import WorkerPool
from burnish.rewards.tasks import Task
import user
with functions_at_hand({{"python:work": user.work}}):
    pool = WorkerPool([RewardSpec("{name}", "work", timeout_seconds=600.0)], 1)
pool.signatures()
pool.begin([Task(0, (0,), ({{"response": "x"}},))])
close = pool.close
"""
CONVERSATION = """
from burnish.agents.environments.warm_parent import ConversationHost
from burnish.agents.environments.warm_parent import Wanted
host = ConversationHost(Wanted(tools=["user.py:work"]))
held = host.lease()
held.send({"do": "call", "name": "work", "arguments": {}, "limit": 1000, "seed": 0})
close = host.close
"""
JOB = """
from burnish.errors import SandboxError
from burnish.sandbox.job import Limits
from burnish.sandbox.parent import WarmParent
parent = WarmParent("{tier}")
def run():
    try: parent.program(pathlib.Path("user.py").read_text() + "work()", "", Limits(600.0, 600.0, processes=64))
    except SandboxError: pass
thread = threading.Thread(target=run, daemon=True)
thread.start()
def close():
    parent.stop()
    thread.join()
    parent.close()
"""
SESSIONS = """
from burnish.sandbox.job import Limits
from burnish.sandbox.sessions import Sessions
sessions = Sessions("{tier}", limits=Limits(600.0, 600.0, processes=64))
session = sessions.open(60.0)
code = pathlib.Path("user.py").read_text() + "work()"
threading.Thread(target=session.run, args=(code, 600.0), daemon=True).start()
close = sessions.close
"""
VLLM = """
from burnish.rollouts.vllm.process import EngineProcess
worker = EngineProcess(sys.executable, pathlib.Path("log"))
close = worker.kill
"""
ROLE = """
from burnish.distributed.peers import ProcessSpec
from burnish.distributed.processes import RoleProcess
from burnish.distributed.fork_server import ForkServer
import user
fork_server = {server}
process = RoleProcess(ProcessSpec("role", user.roles, ()), threads=1, fork_server=fork_server)
def close():
    process.close()
    if fork_server is not None:
        fork_server.close()
"""
FORKED_ROLE = ROLE.format(server="ForkServer()")
ROLE_AT_WORK = """
threading.Thread(target=process.role("policy", seconds=600.0).ask, args=("work",), daemon=True).start()
while not os.path.exists("at work"):
    time.sleep(0.01)
def close():
    process.kill()
    fork_server.close()
"""


@dataclass(frozen=True)
class Family:
    """opening: opens it, and sets `close`. processes: how many it has at least. leaves: whether the code of a user's
    leaves a process. outlives: what it is known not to end with."""

    opening: str
    processes: int
    user: str = LEAVES + WORK
    leaves: bool = True
    outlives: tuple[str, ...] = ()


HELD = ("a fork holds what the program held, which is killed",)  # the end of their socket is all that these wait for
CONFINED = "def leave(): pass\n" + WORK
FAMILIES = {
    "reward in a file": Family(POOL.format(name="user.py:work"), 3),
    "reward in memory": Family(POOL.format(name="python:work"), 3),
    "conversation": Family(CONVERSATION, 3),
    "job": Family(JOB.format(tier="process"), 3, outlives=HELD),
    "confined job": Family(JOB.format(tier="landlock"), 2, CONFINED, leaves=False, outlives=HELD),
    "job in namespaces": Family(JOB.format(tier="namespaces"), 3, CONFINED, leaves=False, outlives=HELD),
    "session": Family(SESSIONS.format(tier="process"), 3, outlives=HELD),
    "confined session": Family(SESSIONS.format(tier="landlock"), 2, CONFINED, leaves=False, outlives=HELD),
    "session in namespaces": Family(SESSIONS.format(tier="namespaces"), 3, CONFINED, leaves=False, outlives=HELD),
    "vLLM": Family(VLLM, 1, "", leaves=False, outlives=("it is stopped, and the program is killed",)),
    "role": Family(ROLE.format(server=None), 1, ROLES, leaves=False),
    "role of a fork server": Family(FORKED_ROLE, 2, ROLES, leaves=False),
    "role at work": Family(FORKED_ROLE + ROLE_AT_WORK, 2, ROLES, leaves=False),
}
EVENTS = (
    "the program closes it",
    "it is stopped, and the program closes it",
    "the program is interrupted",
    "the program is killed",
    "a fork holds what the program held, which is killed",
    "it is stopped, and the program is killed",
    "its first process is killed, and the program closes it",
    "its last process is killed, and the program closes it",
)
CASES = [(name, event) for name, family in FAMILIES.items() for event in EVENTS if event not in family.outlives]


@dataclass
class Opened:
    """A program with a family, and the processes of that, the first one its own child."""

    program: subprocess.Popen[str]
    started: list[int]
    left: int | None
    holders: list[int] = field(default_factory=list)

    def say(self, word: str) -> None:
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(f"{word}\n")
        self.program.stdin.flush()
        assert self.program.stdout.readline() == "done\n"

    def signal(self, number: int, *pids: int) -> None:
        for pid in pids or self.started:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture
def opened(request: Any, tmp_path: Path) -> Iterator[Opened]:
    family = FAMILIES[request.getfixturevalue("name")]
    file = tmp_path / "left"
    (tmp_path / "user.py").write_text(f"FILE = {str(file)!r}\n{family.user}")
    words = [sys.executable, "-c", PROGRAM.format(opening=family.opening)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    ) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        if said.startswith("TierRefusedError"):
            pytest.skip(said)
        assert said == "open\n"
        wait_for(lambda: len(children(program.pid)) >= family.processes and family.leaves <= file.exists())
        left = int(file.read_text()) if family.leaves else None
        # The first one started is the program's child, and processes get rising numbers.
        mine = Opened(program, sorted(children(program.pid)), left)
        yield mine
        program.kill()
    mine.signal(signal.SIGKILL, *mine.started, *mine.holders)


@pytest.mark.matrix_cases("role at work-*", "confined *")
@pytest.mark.parametrize(("name", "event"), CASES)
def test_nothing_is_left_of_a_family(name: str, event: str, opened: Opened) -> None:
    program = opened.program
    gone = opened.started
    assert opened.left is None or opened.left in gone
    match event:
        case "its first process is killed, and the program closes it":
            opened.signal(signal.SIGKILL, gone[0])
            gone = [pid for pid in gone if pid != opened.left]  # nobody is there to adopt it
        case "its last process is killed, and the program closes it":
            opened.signal(signal.SIGKILL, max(pid for pid in gone if pid != opened.left))
        case _ if "stopped" in event:
            opened.signal(signal.SIGSTOP)
        case _ if "a fork" in event:
            opened.say("fork")
            opened.holders = list(children(program.pid) - set(gone))
    if "closes" in event:
        opened.say("close")
    else:
        program.send_signal(signal.SIGINT if "interrupted" in event else signal.SIGKILL)
    wait_for(lambda: not any(map(runs, gone)), seconds=0.1 if event == "the program closes it" else 60.0)
