"""Whole jobs in the confined tiers: honest programs pass, dishonest ones fail, and nothing is left."""

import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
from watching import children, leaving_nothing, wait_for

from burnish.errors import SandboxError
from burnish.sandbox import sandbox as sandbox_module
from burnish.sandbox.job import AssertTests, Case, FunctionTests, Limits, Output, Program, ProgramTests, Verdict
from burnish.sandbox.parent import WarmParent
from burnish.sandbox.sandbox import Sandbox, judge_programs, same_output
from burnish.sandbox.trial import attack

SECRET = 271828


def cases(*pairs: tuple[object, object]) -> tuple[Case, ...]:
    return tuple(Case((given,), expected) for given, expected in pairs)


def judged(sandbox: Sandbox, code: str, limits: Limits | None = None) -> Verdict:
    """Of a function that should double, or find the secret out."""
    return sandbox.run(FunctionTests(code, "f", cases((1, SECRET), (2, SECRET + 1))), limits)


def test_cases(sandbox: Sandbox) -> None:
    verdict = sandbox.run(FunctionTests("def f(x): return x * 2", "f", cases((1, 2), ("a", "aa"), (2, 5))))
    assert (verdict.status, verdict.passed, verdict.total, verdict.grade) == ("failed", 2, 3, "split")
    assert (verdict.detail, verdict.fraction) == ("f(2) returned 4, not 5", 2 / 3)


HONEST = {
    "modules": "import heapq, math, collections, re, itertools, statistics, bisect, decimal\ndef f(x): return 2 * x",
    "late": "def f(x):\n    import ipaddress, difflib\n    return 2 * x",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(x): return A(2 * x).x",
    "threads": (
        "import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
        "def f(x):\n    found = []\n    thread = threading.Thread(target=lambda: found.append(2 * x))\n"
        "    thread.start()\n    thread.join()\n    return found[0]"
    ),
    "prints": "import sys\nprint(1)\ndef f(x):\n    print(x, flush=True)\n    sys.stderr.write('e')\n    return 2 * x",
    "float": "def f(x): return 2.0 * x",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_functions_pass(sandbox: Sandbox, name: str) -> None:
    verdict = sandbox.run(FunctionTests(HONEST[name], "f", cases((1, 2), (3, 6))))
    if name == "threads" and verdict.status == "failed":
        assert "start new thread" in verdict.detail  # root without a user of its own may have none
    else:
        assert verdict.status == "passed", verdict


def test_programs_read_and_write(sandbox: Sandbox) -> None:
    code = "import sys\nn = int(input())\nprint(sum(map(int, sys.stdin.read().split())) + n)"
    assert sandbox.run(ProgramTests(code, (("1\n2 3\n4", "10"), ("0\n1", "1.0\n")))).status == "passed"
    output = sandbox.output(Program("import sys\nif __name__ == '__main__':\n    print('é')\n    sys.exit(3)"))
    assert (output.stdout, output.code, output.timed_out) == ("é\n", 3, False)
    assert "ZeroDivisionError" in sandbox.output(Program("1 / 0")).stderr
    assert sandbox.output(Program("import sys\nsys.stderr.write('no line end')")).stderr == "no line end"
    assert sandbox.output(Program("print(len(input().split()))", "1 " * 500_000)).stdout == "500000\n"


CHEATS = {
    "exits when loaded": "import os\nos._exit(0)",
    "raises SystemExit": "def f(x): raise SystemExit(0)",
    "equal to all": "class A(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\ndef f(x): return A(3)",
    "equal to all, a list": "class A(list):\n    __eq__ = lambda a, b: True\ndef f(x): return A()",
    "no number": "def f(x): return float('nan')",
    "looks at memory": (
        "import gc, sys\ndef f(x):\n    found = [o for o in gc.get_objects() if isinstance(o, (list, dict)) "
        "and '271828' in repr(o)[:9999]]\n    return found[0] if found else 0"
    ),
    "writes a verdict": (
        'import os\nfor n in range(3, 40):\n    try: os.write(n, b\'{"passed": true}\\n{"end": true}\\n\')\n'
        "    except OSError: pass\ndef f(x): return 0"
    ),
    "answers by itself": (
        "import os, json\ndef f(x):\n    data = json.dumps({'value': True, 'changed': {}}).encode()\n"
        "    for n in range(3, 10):\n        try: os.write(n, len(data).to_bytes(8, 'big') + data)\n"
        "        except OSError: pass\n    return 0"
    ),
    "announces much": (
        "import os\nfor n in range(3, 10):\n    try: os.write(n, b'\\xff' * 8)\n    except OSError: pass\n"
        "def f(x): return 0"
    ),
    "replaces builtins": (
        "import builtins\nbuiltins.all = builtins.any = lambda x: True\nbuiltins.len = lambda x: 0\ndef f(x): return 0"
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_dishonest_functions_do_not(sandbox: Sandbox, name: str) -> None:
    verdict = judged(sandbox, CHEATS[name])
    assert verdict.passed == 0
    assert verdict.status in ("failed", "not_loaded", "ended")


@pytest.mark.slow_cases("landlock", "namespaces")
def test_what_takes_too_much_is_ended_and_named(sandbox: Sandbox) -> None:
    short = Limits(seconds=1.0)
    assert judged(sandbox, "while True: pass", short).status == "timed_out"
    assert judged(sandbox, "def f(x):\n    while True: pass", short).status == "timed_out"
    assert judged(sandbox, "import time\ndef f(x): time.sleep(99)", short).status == "timed_out"
    assert judged(sandbox, "x = bytearray(1 << 34)").status == "out_of_memory"
    assert judged(sandbox, "def f(x): return bytearray(1 << 34)").status == "out_of_memory"
    assert judged(sandbox, "def f(x): return 'x' * (1 << 26)").status == "failed"  # too long to cross
    assert judged(sandbox, "def f(x): return f(x)").status == "failed"
    assert judged(sandbox, "def f(x):\n    y = []\n    y.append(y)\n    return y").status == "failed"


@pytest.mark.slow
def test_an_interrupted_job_leaves_no_answer_for_the_next(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.tier, limits=sandbox.limits) as one:
        with patch.object(WarmParent, "_collect", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            judged(one, f"def f(x): return {SECRET} + x - 1")
        assert judged(one, "def f(x): return 0").passed == 0


def test_a_case_that_cannot_cross_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="a case for 'f' cannot be sent: a value of type 'object' is not plain"):
        sandbox.run(FunctionTests("def f(x): return x", "f", cases((1, object()))))


@pytest.mark.slow_cases("landlock", "namespaces")
def test_what_the_code_returns_cannot_end_the_tests_without_a_verdict(sandbox: Sandbox) -> None:
    limits = Limits(seconds=4.0, processor_seconds=1.0)
    verdict = sandbox.run(AssertTests("def f(): return range(10**12)", ("assert sum(f()) == 3",)), limits)
    assert (verdict.status, verdict.passed, verdict.total) == ("timed_out", 0, 1)
    text = "for n in f():\n    assert n == 0\nassert f() == 3"
    verdict = sandbox.run(AssertTests("def f(): return [0] * 300_000", (text,)))
    assert (verdict.status, verdict.passed, verdict.total) == ("failed", 1, 2)
    assert judged(sandbox, "x = '\ud800'").status == "not_loaded"
    assert sandbox.output(Program("print('\ud800')", "\ud800")).code == 1


def test_the_end_of_the_code_is_not_caught_by_the_tests(sandbox: Sandbox) -> None:
    text = "try:\n    r = f(1)\n    assert r == 2\nexcept Exception as error:\n    print(error)"
    verdict = sandbox.run(AssertTests("import os\ndef f(x): os._exit(0)", (text,)))
    assert (verdict.status, verdict.passed) == ("ended", 0)


def test_a_process_that_cannot_be_confined_is_no_verdict(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="could not be confined"):
        judged(sandbox, "def f(x): return 1", dataclasses.replace(sandbox.limits, files=3))


def test_an_early_end_does_not_make_tests_fewer(sandbox: Sandbox) -> None:
    code = "import os\ndef f(x): return x if x < 9 else os._exit(0)"
    verdict = sandbox.run(AssertTests(code, tuple(f"assert f({n}) == {n}" for n in range(100))))
    assert (verdict.status, verdict.passed, verdict.total) == ("ended", 9, 100)


@pytest.mark.slow
def test_programs_share_their_time(sandbox: Sandbox) -> None:
    verdict = sandbox.run(ProgramTests("while True: pass", (("", "1"),) * 100), Limits(seconds=0.5))
    assert (verdict.status, verdict.passed, verdict.total) == ("timed_out", 0, 100)
    assert verdict.seconds < 25.0  # half of what they would take one by one


PROGRAMS = {
    "fast output": "import sys, atexit, io\nout = io.StringIO()\natexit.register(lambda: sys.stdout.write('3'))",
    "a mode": "import sys\nassert 'w' in sys.stdout.mode\nsys.__stdout__.write('3')",
    "buffered input": "import sys\nsys.stdin.buffer.peek(1)\nprint(len(sys.stdin.buffer.readlines()))",
    "an event loop": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print(3)\nasyncio.run(main())",
    "arguments": "import fileinput\nprint(sum(1 for line in fileinput.input()))",
    "an exit": "import atexit\natexit.register(print, 3)\nraise SystemExit",
    "a pool": "from concurrent.futures import ThreadPoolExecutor as P\npool = P(1)\npool.submit(print, 3)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_find_what_they_are_used_to(sandbox: Sandbox, name: str) -> None:
    verdict = sandbox.run(ProgramTests(PROGRAMS[name], (("a\nb\nc\n", "3"),)))
    if name == "a pool" and verdict.status == "ended":
        assert "start new thread" in verdict.detail  # as above
    else:
        assert verdict.status == "passed", verdict


@pytest.mark.slow_cases("landlock", "namespaces")
def test_a_deadline_keeps_the_tests_before_it(sandbox: Sandbox) -> None:
    code = "def f(x):\n    while x > 1: pass\n    return x"
    verdict = sandbox.run(FunctionTests(code, "f", cases((0, 0), (1, 1), (2, 2))), Limits(seconds=5.0))
    assert (verdict.status, verdict.passed, verdict.total) == ("timed_out", 2, 3)


def test_nothing_of_one_candidate_reaches_the_next(sandbox: Sandbox) -> None:
    spoil = "import math, builtins, random\nmath.pi = 3\nbuiltins.sum = None\nrandom.seed(5)\n"
    sandbox.output(Program(spoil + "open('/tmp/x', 'w').write('x')"))
    look = "import math, os, random\nprint(math.pi, sum([1]), os.path.exists('/tmp/x'), random.random())"
    first = sandbox.output(Program(look)).stdout
    assert first.startswith("3.14159")
    assert " 1 False " in first
    assert sandbox.output(Program(look)).stdout == first  # the same program has the same luck


def test_programs_without_a_pair_are_an_error(sandbox: Sandbox) -> None:
    """For assertions and functions, `test_shared.py` says so."""
    with pytest.raises(SandboxError, match="the tests test nothing"):
        sandbox.run(ProgramTests("def f(x): return x", ()))


@pytest.mark.slow
def test_all_attacks_are_held(sandbox: Sandbox) -> None:
    assert [one for one in attack(sandbox) if not one.held] == []


def run_all(sandbox: Sandbox, jobs: Sequence[FunctionTests]) -> list[Verdict]:
    with ThreadPoolExecutor(sandbox.processes) as threads:
        return list(threads.map(sandbox.run, jobs))


@pytest.mark.slow
def test_several_threads_share_it(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.tier, processes=2, limits=sandbox.limits) as two:
        jobs = [FunctionTests("def f(x): return x", "f", cases((n, n % 3))) for n in range(12)]
        assert [verdict.status == "passed" for verdict in run_all(two, jobs)] == [n < 3 for n in range(12)]


@pytest.mark.slow
def test_a_process_that_fails_is_named_and_replaced(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.tier, limits=sandbox.limits) as one:
        one._idle.queue[0]._process.end()
        with pytest.raises(SandboxError, match="has ended with status -9"):
            judged(one, "def f(x): return 0")
        assert judged(one, "def f(x): return 0").status == "failed"


def roots() -> set[Path]:
    """Folders on which a root was mounted."""
    return set(Path(tempfile.gettempdir()).glob("burnish-sandbox-*"))


@pytest.mark.slow_cases("landlock", "namespaces")
def test_nothing_is_left(sandbox: Sandbox) -> None:
    left_by_killed_runs, limits = roots(), dataclasses.replace(sandbox.limits, seconds=0.5)
    with leaving_nothing(), Sandbox(sandbox.tier, processes=2, limits=limits) as one:
        run_all(one, [FunctionTests("while True: pass", "f", cases((1, 1)))] * 4)
    seen = roots() - left_by_killed_runs  # another test may be making one at this moment
    wait_for(lambda: not seen & roots())


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 2 \n", " 1 2\n\n", True),
        ("1", "1.0", True),
        ("0.5 a", ".50 a", True),
        ("a", "A", False),
        ("1 2", "1\n2", False),
        ("nan", "nan", True),
        ("1e400", "1e401", False),
        ("", "\n", True),
        ("1", "", False),
    ],
)
def test_same_output(expected: str, found: str, same: bool) -> None:
    assert same_output(expected, found) is same


@pytest.mark.matrix_cases("landlock")
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the confined tiers need Linux")
def test_a_hundred_programs_of_which_ten_hang(sandbox: Sandbox) -> None:
    limits = Limits(seconds=0.5, processor_seconds=1.0)
    with leaving_nothing(), Sandbox(sandbox.tier, processes=2, limits=limits) as one:
        jobs = [FunctionTests("while True: pass" if n % 10 == 0 else "x = 1", "f", cases((1, 1))) for n in range(100)]
        verdicts = run_all(one, jobs)
    assert sum(verdict.status == "timed_out" for verdict in verdicts) >= 10
    assert all(verdict.passed == 0 for verdict in verdicts)


@pytest.mark.slow
def test_a_sandbox_that_closes_ends_the_jobs_that_run(sandbox: Sandbox) -> None:
    before = children()
    one = Sandbox(sandbox.tier, processes=2, limits=sandbox.limits)
    with ThreadPoolExecutor(3) as threads:  # one waits for the others
        endless = "import time\ntime.sleep(1000)"  # no limit of the processor ends it
        jobs = [threads.submit(judged, one, endless) for _ in range(3)]
        wait_for(lambda: len(children() - before) >= 6)
        one.close()
        assert [job.exception(60).message for job in jobs] == ["the sandbox has been closed"] * 3  # type: ignore[union-attr]
    wait_for(lambda: children() <= before)
    with pytest.raises(SandboxError, match="has been closed"):
        judged(one, "def f(x): return x")
    one.close()


def test_sets_have_the_same_order_in_every_process(sandbox: Sandbox) -> None:
    look = Program("print(*{'one', 'two', 'three', 'four', 'five'}, hash('a'))")
    first = sandbox.output(look).stdout
    with Sandbox(sandbox.tier) as other:
        assert other.output(look).stdout == first


def test_nothing_is_run_behind_the_first_failure_if_only_that_counts(sandbox: Sandbox) -> None:
    slow = ProgramTests("import time\nif input(): time.sleep(60)", (("\n", "1"), ("x", "")), until_failure=True)
    verdict = sandbox.run(slow, Limits(seconds=20.0))
    assert (verdict.status, verdict.passed, verdict.total) == ("failed", 0, 2)
    assert verdict.seconds < 20.0


def test_a_large_result_may_be_written(sandbox: Sandbox) -> None:
    expected = "1234567\n" * 200_000
    assert sandbox.run(ProgramTests("print('1234567\\n' * 200_000)", (("", expected),))).status == "passed"


def test_a_case_that_is_too_large_is_the_fault_of_the_tests(sandbox: Sandbox) -> None:
    large = FunctionTests("def f(x): return 1", "f", cases(("x" * 2000, 1)))
    with pytest.raises(SandboxError, match="arguments of a case: a value of"):
        sandbox.run(large, Limits(values_bytes=1000))


def test_tests_that_take_too_long_to_begin_are_no_failure_of_the_code(sandbox: Sandbox) -> None:
    tests = AssertTests("def f(x): return x", ("assert f(1) == 1",), prelude="import time\ntime.sleep(60)")
    with pytest.raises(SandboxError, match="the tests were not ready within"):
        sandbox.run(tests, Limits(seconds=1.0))


def test_the_code_cannot_name_its_failure_one_of_the_tests(sandbox: Sandbox) -> None:
    text = "import unittest\nclass Tests(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(1), 2)\n"
    code = "def f(x): raise ValueError('BrokenTestsError \\udc80')"
    assert sandbox.run(AssertTests(code, (text,))).status == "failed"


def test_programs_that_take_too_long_to_start_have_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is too slow for so many is not the code's fault; the reward is not stopped for it either."""

    def slow_start(program: Program, limits: Limits) -> Output:
        time.sleep(0.06)
        return Output("1", "", 0, 0.0)

    assert judge_programs(slow_start, ProgramTests("", (("", "1"),) * 9), Limits(seconds=0.2)).status == "passed"
    monkeypatch.setattr(sandbox_module, "LEAST_START_SECONDS", 0.1)
    with pytest.raises(SandboxError, match=r"\d of 9 programs ran for 0\.0 s, which took 0\.3 s with their start"):
        judge_programs(slow_start, ProgramTests("", (("", "1"),) * 9), Limits(seconds=0.2))
