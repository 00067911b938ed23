"""Sessions in the confined tiers: what stays, what is shown, what ends them, and that nothing is left."""

import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from confining import where_confined
from watching import children, leaving_nothing, wait_for

from burnish.errors import SandboxError
from burnish.sandbox.cells import TAIL_BYTES
from burnish.sandbox.job import Limits
from burnish.sandbox.sessions import CellOutput, SandboxSession, Sessions

LIMITS = Limits(processor_seconds=60.0, memory_mb=256)
SECONDS = 60.0
"""Far more than anything here needs, because the machine may be busy."""
SHOWN = 2000


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def sessions(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    with where_confined():
        opened = Sessions(request.param, most=40, limits=LIMITS, shown_bytes=SHOWN)
    with opened:
        yield opened


@pytest.fixture
def session(sessions: Sessions) -> Iterator[SandboxSession]:
    with closing(sessions.open(SECONDS)) as opened:
        yield opened


def shown(session: SandboxSession, code: str) -> str:
    output = session.run(code, SECONDS)
    assert output.ended == ""
    return output.text


def assert_over(session: SandboxSession) -> None:
    with pytest.raises(SandboxError, match="the session is over"):
        session.run("1", SECONDS)


def running(session: SandboxSession, code: str) -> Future[CellOutput]:
    """Run a cell in a thread."""
    threads = ThreadPoolExecutor(1)
    cell = threads.submit(session.run, code, 600.0)
    threads.shutdown(wait=False)
    return cell


def test_what_is_defined_stays(session: SandboxSession) -> None:
    assert shown(session, "import math\nx = 3\ndef f(y): return x * y") == ""
    assert shown(session, "f(math.floor(2.5))") == "6"
    assert shown(session, "x = 4\nprint(f(2))\nf(3)") == "8\n12"
    assert shown(session, "from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int = 1") == ""
    assert shown(session, "A(2)") == "A(n=2)"
    assert shown(session, "import pickle\npickle.loads(pickle.dumps(A(3))).n") == "3"
    assert shown(session, "__name__") == "'__main__'"


CELLS = {
    "print('a')": "a\n",
    "print('a', end='')\n1 + 1": "a\n2",
    "None": "",
    "x = 1": "",
    "'é'": "'é'",
    "import sys\nsys.stderr.write('e')\nprint('o')\nNone": "eo\n",
    "import os\nos.write(1, b'raw')": "raw3",
    "exit()": "",
    "raise SystemExit('bye')": "SystemExit: bye",
    "x = [": "  File \"<cell 1>\", line 1\n    x = [\n        ^\nSyntaxError: '[' was never closed",
    "import sys\nsys.stdout = sys.stderr = None\n5": "5",
    "print('\\ud800')": "\\ud800\n",
}
RAISING = {
    "input()": "EOFError: EOF when reading a line",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "'\ud800'": "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position 1",
    "class E(Exception):\n    def __str__(self): raise E\nraise E": "E: <exception str() failed>",
    "class R:\n    def __repr__(self): return 1 / 0\nR()": "ZeroDivisionError: division by zero",
    "def f(): return f()\nf()": "RecursionError: maximum recursion depth exceeded",
    "eval('(' * 10**5)": "SyntaxError: too many nested parentheses",
    "raise ExceptionGroup('g', [ValueError('inner')])": "ValueError: inner",
    "import json\njson.loads('{')": "line 1 column 2 (char 1)",
    "bytearray(1 << 34)": "MemoryError",
    "import missing_module": "ModuleNotFoundError: No module named 'missing_module'",
}


@pytest.mark.parametrize("code", CELLS)
def test_what_a_cell_shows(session: SandboxSession, code: str) -> None:
    assert shown(session, code) == CELLS[code]
    assert shown(session, "print(7)") == "7\n"


@pytest.mark.parametrize("code", RAISING)
def test_what_a_cell_that_raises_shows(session: SandboxSession, code: str) -> None:
    output = session.run(code, SECONDS)
    assert output.failed
    assert RAISING[code] in output.text
    assert "burnish" not in output.text
    assert sys.prefix not in output.text
    assert shown(session, "print(7)") == "7\n"


def test_a_traceback_has_the_lines_of_the_cells_alone(session: SandboxSession) -> None:
    shown(session, "import json\ndef load(text):\n    return json.loads(text)")
    assert shown(session, "\nload('{')").splitlines() == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 2, in <module>',
        "    load('{')",
        '  File "<cell 1>", line 3, in load',
        "    return json.loads(text)",
        "           ^^^^^^^^^^^^^^^^",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ]
    deep = "def g(n): return g(n - 1) if n % 2 else h(n)\ndef h(n): return g(n - 1) if n else 1 / 0\ng(99)"
    long = shown(session, deep)
    assert long.startswith("...")
    assert long.endswith("ZeroDivisionError: division by zero")
    assert len(long) < TAIL_BYTES


@pytest.mark.slow_cases("landlock", "namespaces")
def test_output_has_a_limit_and_its_end_is_seen_all_the_same(session: SandboxSession) -> None:
    assert shown(session, f"print('x' * {SHOWN - 1})\n1") == "x" * (SHOWN - 1) + "\n1"
    text = shown(session, "for n in range(200_000): print('line', n)\n1 / 0")
    assert text.startswith("line 0\nline 1\n")
    assert f"[{sum(len(f'line {n}') + 1 for n in range(200_000)) - SHOWN} more bytes were printed]\n" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert len(shown(session, "import os\nfor _ in range(50): os.write(1, b'x' * 65536)")) <= SHOWN + TAIL_BYTES
    assert shown(session, "print('y')") == "y\n"
    assert shown(session, "'z' * 10**6").endswith("more characters of the value]")
    assert len(shown(session, "list(range(10**6))")) < TAIL_BYTES


STUBBORN = {
    "closes its output": "import os\nos.close(1)\nprint('still')",
    "closes the stream": "import sys\nsys.stdout.close()",
    "replaces the stream": "import sys, io\nsys.stdout = io.StringIO()\nprint('hidden')",
    "changes the file": "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, 0)\nos.lseek(1, 100, 0)\nos.ftruncate(1, 0)",
    "takes all descriptors": "import os\ntry:\n    while True: os.dup(1)\nexcept OSError: pass",
    "fills the memory": (
        "kept = []\ntry:\n    while True: kept.append(bytearray(1 << 20))\nexcept MemoryError: kept.clear()"
    ),
    "forks": "import os\nfor _ in range(50):\n    try: os.fork()\n    except OSError: pass",
    "starts threads": (
        "import threading, time\nfor _ in range(100):\n"
        "    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: break"
    ),
    "catches everything": "def f():\n    try: 1 / 0\n    except BaseException: pass\nf()",
    "spoils builtins": "import builtins\nbuiltins.print = builtins.open = None\nbuiltins.repr = lambda x: 'lie'",
}


@pytest.mark.parametrize("name", STUBBORN)
def test_what_does_not_end_a_session(session: SandboxSession, name: str) -> None:
    shown(session, "x = 5")
    shown(session, STUBBORN[name])
    assert "5" in shown(session, "import sys; sys.stdout.write(f'{x}') and None")


ENDS = {
    "exits": ("os._exit(3)", "ended itself with status 3"),
    "crashes": ("import ctypes\nctypes.string_at(0)", r"crashed \(SIGSEGV\)"),
    "aborts": ("os.abort()", r"crashed \(SIG(ABRT|SEGV)\)"),
    "closes the channel": ("os.closerange(3, 60)", "ended itself|closed its connection"),
    "closes the channel and stays": ("os.closerange(3, 60)\ntime.sleep(600)", "closed its connection to the sandbox"),
    "answers by itself": ("os.write(3, b'?')\nos.write(4, b'?')\nwhile True: pass", "closed"),
}


@pytest.mark.slow_cases("namespaces-answers by itself", "landlock-answers by itself")
@pytest.mark.parametrize("name", ENDS)
def test_what_ends_a_session_is_named(session: SandboxSession, name: str) -> None:
    code, how = ENDS[name]
    output = session.run(f"import os, time\nprint('before')\n{code}", SECONDS)
    assert output.text.startswith("before\n")
    assert (output.failed, output.stopped) == (True, False)
    assert re.search(how, output.ended), output.ended
    assert_over(session)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "print('before')\nwhile True: pass",
        "print('before')\nimport time\ntime.sleep(600)",
        "print('before')\nimport signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
    ],
)
def test_a_cell_without_an_end_is_stopped(session: SandboxSession, code: str) -> None:
    output = session.run(code, 1.0)
    assert (output.text, output.stopped, output.ended) == ("before\n", True, "was stopped after 1 s")
    assert_over(session)


@pytest.mark.slow_cases("landlock", "namespaces")
def test_a_session_has_processor_time_for_all_its_cells(sessions: Sessions) -> None:
    with Sessions(sessions.tier, limits=Limits(processor_seconds=1.0)) as short:
        session = short.open(SECONDS)
        busy = "import time\nend = time.process_time() + .7\nwhile time.process_time() < end: pass"
        assert session.run(busy, SECONDS).ended == ""
        how = session.run(busy, SECONDS).ended
        assert how in ("used up its processor time", "was killed, as happens without memory or processor time")


def test_an_answer_that_is_forged_ends_no_more_than_its_own_session(session: SandboxSession) -> None:
    first = session.run("import os, threading\nos.write(3, b'.')", SECONDS)  # the answer comes before the end
    assert not first.failed
    wait_for(lambda: session.how_it_ended() != "")
    assert_over(session)


def test_a_code_that_is_not_read_does_not_block(session: SandboxSession) -> None:
    shown(session, "import os, threading, time\nos.write(3, b'.')\ntime.sleep(600)")  # it goes on
    output = session.run("x" * (1 << 22), 1.0)
    assert output.failed
    assert output.ended


def test_what_ends_between_cells_is_noticed(session: SandboxSession) -> None:
    assert session.how_it_ended() == ""
    code = "import os, threading\nthreading.Thread(target=lambda: os._exit(5)).start()"
    output = session.run(code, SECONDS)
    if "can't start new thread" in output.text:
        pytest.skip("root without a user of its own may have no threads")
    if not output.ended:
        wait_for(lambda: session.how_it_ended() != "")
    assert session.how_it_ended() == "was closed"


def test_sessions_do_not_see_each_other(sessions: Sessions) -> None:
    with closing(sessions.open(SECONDS)) as one, closing(sessions.open(SECONDS)) as other:
        shown(one, "secret = 271828\nimport math\nmath.pi = 3")
        shown(one, "try: open('/tmp/x', 'w').write('x')\nexcept OSError: pass")
        assert "NameError" in shown(other, "secret")
        assert shown(other, "import math, os\nmath.pi > 3, os.path.exists('/tmp/x')") == "(True, False)"
        drawn = [shown(each, "import random\nrandom.seed(1); random.random()") for each in (one, other)]
        assert drawn[0] == drawn[1]
        one.close()
        assert shown(other, "1") == "1"


def test_sessions_begin_alike(sessions: Sessions) -> None:
    said = set()
    for _ in range(2):
        with closing(sessions.open(SECONDS)) as session:
            said.add(shown(session, "import random, numpy\nprint(random.random(), numpy.random.rand(), hash('a'))"))
    assert len(said) == 1


ESCAPES = """
import os, socket, subprocess
found = []
def tries(name, attempt):
    try: attempt()
    except (OSError, RuntimeError): return
    found.append(name)
tries('reads', lambda: open(FILE).read())
tries('writes', lambda: open(FILE, 'w').write('x'))
tries('removes', lambda: os.remove(FILE))
tries('signals', lambda: os.kill(PID, 0))
tries('forks', lambda: os.fork() or os._exit(0))
tries('runs', lambda: subprocess.run(['true']))
tries('connects', lambda: socket.create_connection(('127.0.0.1', 1), timeout=1))
tries('looks', lambda: open(f'/proc/{PID}/environ').read())
RIGHTS = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, bytes(4))]
tries('sends', lambda: socket.socketpair()[0].sendmsg([b'x'], RIGHTS))
print(found, 'HOME' in os.environ)
"""


def test_a_session_is_as_confined_as_a_candidate(session: SandboxSession, tmp_path: Path) -> None:
    assert "HOME" in os.environ
    bait = tmp_path / "bait"
    bait.write_text("secret")
    bait.chmod(0o666)
    assert shown(session, f"FILE = {str(bait)!r}\nPID = {os.getpid()}\n{ESCAPES}") == "[] False\n"
    assert bait.read_text() == "secret"


@pytest.mark.slow
def test_many_sessions_at_a_time(sessions: Sessions) -> None:
    opened = [sessions.open(SECONDS) for _ in range(sessions.most)]
    try:
        assert [shown(session, f"x = {n}") for n, session in enumerate(opened)] == [""] * len(opened)
        assert [int(shown(session, "x")) for session in opened] == list(range(len(opened)))
        with pytest.raises(TimeoutError, match="all 40 sessions of the sandbox were in use"):
            sessions.open(0.05)
        opened.pop().close()
        opened.append(sessions.open(SECONDS))
        start = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(9,)).start()"
        texts = {shown(session, start) for session in opened}
        assert texts == {""} or all("can't start new thread" in text for text in texts)  # as above
    finally:
        for session in opened:
            session.close()


def test_several_threads_use_it(sessions: Sessions) -> None:
    def converse(n: int) -> str:
        with closing(sessions.open(SECONDS)) as session:
            shown(session, f"x = {n}")
            return shown(session, "x * x")

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(converse, range(12))) == [str(n * n) for n in range(12)]


def test_nothing_is_left_of_sessions_that_end(sessions: Sessions) -> None:
    sessions.open(SECONDS).close()
    settle(sessions)
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    opened = [sessions.open(SECONDS) for _ in range(4)]
    opened[0].run("while True: pass", 0.2)
    opened[1].run("import os\nos._exit(0)", SECONDS)
    shown(opened[2], "import os, time\ntry: os.fork()\nexcept OSError: pass")
    for session in opened:
        session.close()
        session.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    wait_for(lambda: children() <= before)
    settle(sessions)


def settle(sessions: Sessions) -> None:
    """Wait until the parent has nothing but its own descriptors: three streams, a socket, a selector."""
    held = Path("/proc") / str(sessions._parent._process.pid) / "fd"
    wait_for(lambda: len(os.listdir(held)) <= 5)


@pytest.mark.slow_cases("landlock")
def test_closing_ends_cells_that_run(sessions: Sessions) -> None:
    with leaving_nothing():
        several = Sessions(sessions.tier, limits=LIMITS)
        idle, busy = several.open(SECONDS), several.open(SECONDS)
        cell = running(busy, "import time\ntime.sleep(600)")
        time.sleep(0.1)
        several.close()
        output = cell.result(60)
    assert (output.failed, output.stopped) == (True, False)
    assert idle.how_it_ended() == "was closed"
    several.close()
    with pytest.raises(SandboxError, match="has been closed"):
        several.open(1.0)


def test_an_interrupted_cell_ends_its_session(session: SandboxSession) -> None:
    with patch.object(SandboxSession, "_answer", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        session.run("x = 1", SECONDS)
    assert_over(session)


@pytest.mark.slow
def test_a_parent_that_fails_takes_its_sessions_with_it_and_is_replaced(sessions: Sessions) -> None:
    before = children()
    with Sessions(sessions.tier, limits=LIMITS) as own:
        busy = own.open(SECONDS)
        cell = running(busy, "import time\nprint('before')\nwhile True: time.sleep(1)")
        wait_for(lambda: os.fstat(busy._output).st_size > 0)
        own._parent._process.end()
        output = cell.result(60)
        assert output.failed
        assert output.ended
        wait_for(lambda: children() - before <= {own._parent._process.pid})
        assert shown(own.open(SECONDS), "1 + 1") == "2"


def test_limits_that_are_too_tight_are_an_error(sessions: Sessions) -> None:
    with Sessions(sessions.tier, limits=Limits(files=3)) as tight:
        for _ in range(2):
            with pytest.raises(SandboxError, match="could not be confined"):
                tight.open(SECONDS)
    with pytest.raises(SandboxError, match="from 1 to 512 are possible"):
        Sessions(sessions.tier, most=0)


def test_too_few_descriptors_are_an_error(sessions: Sessions) -> None:
    def none_left(*arguments: object) -> int:
        raise OSError(24, "Too many open files")

    descriptors = len(os.listdir("/proc/self/fd"))
    with patch.object(os, "memfd_create", none_left):
        for _ in range(sessions.most + 1):  # no place is lost
            with pytest.raises(SandboxError, match="cannot be opened: Too many open files"):
                sessions.open(1.0)
    sessions.open(SECONDS).close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
