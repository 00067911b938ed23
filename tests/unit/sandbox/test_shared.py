"""The same tests, apart from the candidate and in its process: an honest candidate gets the same verdict."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import SandboxError
from burnish.sandbox import candidate, in_process, shared, tester, wire
from burnish.sandbox.job import AssertTests, Case, FunctionTests, Output, Program, Verdict
from burnish.sandbox.sandbox import Sandbox

RIGHT = "def double(x): return 2 * x"
WRONG = "def double(x): return None"
IN_SOLUTION = "class Solution:\n    def double(self, x): return 2 * x"
UNITTEST = "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(double(2), 4)"


def asserts(code: str, *texts: str, prelude: str = "", entry: str | None = None) -> AssertTests:
    return AssertTests(code, texts, prelude, entry)


def case(code: str, entry: str, argument: Any, expected: Any, *, wrapped: bool = False) -> FunctionTests:
    return FunctionTests(code, entry, (Case((argument,), expected, wrapped=wrapped),))


PYTEST_CLASS = "class TestDouble:\n    def test_a(self): assert double(2) == 4"
PYTEST_FUNCTION = "def test_double(): assert double(2) == 4"
OWN_TEST = "\ndef test_double(): assert True"
CHECK = "def check(c):\n    assert c(1) == 2\n    assert c(2) == 4"
ONE = "def one(x): return x + 1"
CLOSES = "import sys\nsys.stdout.close()\ndef f(x): return x"
ALIKE = "class A:\n    __eq__ = lambda a, b: True\ndef f(x): return A()"
VERDICTS: dict[str, tuple[FunctionTests | AssertTests, tuple[str, int, int]]] = {
    "a class of tests": (asserts(RIGHT, PYTEST_CLASS), ("passed", 1, 1)),
    "a class of tests, wrong": (asserts(WRONG, PYTEST_CLASS), ("failed", 0, 1)),
    "a test of the candidate's own": (asserts(WRONG + OWN_TEST, PYTEST_FUNCTION), ("failed", 0, 1)),
    "a name of the tests that the code has too": (asserts(RIGHT + OWN_TEST, PYTEST_FUNCTION), ("passed", 1, 1)),
    "unittest": (asserts(RIGHT, UNITTEST), ("passed", 1, 1)),
    "unittest, wrong": (asserts(WRONG, UNITTEST), ("failed", 0, 1)),
    "unittest.main": (asserts(RIGHT, UNITTEST + "\nunittest.main()"), ("passed", 1, 1)),
    "unittest.main, wrong": (asserts(WRONG, UNITTEST + "\nunittest.main()"), ("failed", 0, 1)),
    "a method of Solution": (case(IN_SOLUTION, "double", 2, 4), ("passed", 1, 1)),
    "a method of Solution by its name": (case(IN_SOLUTION, "Solution.double", 2, 4), ("passed", 1, 1)),
    "an assertion about a method of Solution": (asserts(IN_SOLUTION, "assert double(2) == 4"), ("passed", 1, 1)),
    "a module that nobody imports": (asserts(RIGHT, "assert math.isclose(double(0.1), 0.2)"), ("passed", 1, 1)),
    "a module that nobody imports, wrong": (asserts(RIGHT, "assert math.isclose(double(0.1), 1)"), ("failed", 0, 1)),
    "from solution": (asserts(RIGHT, "from solution import double as f\nassert f(2) == 4"), ("passed", 1, 1)),
    "check": (asserts(RIGHT, CHECK, entry="double"), ("passed", 2, 2)),
    "check, wrong": (asserts(RIGHT, CHECK.replace("4", "5"), entry="double"), ("failed", 1, 2)),
    "a prelude": (asserts(RIGHT, "assert one(double(2)) == 5", prelude=ONE), ("passed", 1, 1)),
    "a prelude that the code replaces": (
        asserts(WRONG + "\ndef one(x): return 5", "assert one(double(2)) == 5", prelude=ONE),
        ("failed", 0, 1),
    ),
    "an exception": (
        asserts("def f(x): raise KeyError(x)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
        ("passed", 1, 1),
    ),
    "an object": (
        asserts(
            "class Stack:\n    def __init__(self): self.items = []\n    def push(self, one): self.items.append(one)",
            "stack = Stack()\nstack.push(3)\nassert stack.items == [3]",
        ),
        ("passed", 1, 1),
    ),
    "a changed argument": (
        asserts("def fill(box): box.append(1)", "box = [0]\nfill(box)\nassert box == [0, 1]"),
        ("passed", 1, 1),
    ),
    "an object that is equal to everything": (case(ALIKE, "f", 1, 2), ("failed", 0, 1)),
    "the end of a loop": (asserts("def f(x): raise StopIteration", "assert all(map(f, [1]))"), ("failed", 0, 1)),
    "a wrapped list": (case("def f(x): return x", "f", 1, [1], wrapped=True), ("passed", 1, 1)),
    "a list": (case("def f(x): return x", "f", 1, [1]), ("failed", 0, 1)),
    "deep recursion": (case("def f(n): return 0 if n == 0 else 1 + f(n - 1)", "f", 960, 960), ("passed", 1, 1)),
    "endless recursion": (case("def f(n): return f(n)", "f", 1, 1), ("failed", 0, 1)),
    "a pickle of the code's own class": (
        case("import pickle\nclass A: x = 3\ndef f(x): return pickle.loads(pickle.dumps(A())).x", "f", 1, 3),
        ("passed", 1, 1),
    ),
    "numpy": (case("import numpy\ndef f(x): return numpy.ones(x).sum()", "f", 2, 2), ("passed", 1, 1)),
    "a closed standard output": (case(CLOSES, "f", 2, 2), ("passed", 1, 1)),
    "an exit when loaded": (asserts("raise SystemExit", "assert double(2) == 4"), ("not_loaded", 0, 1)),
    "no Python": (asserts("def double(x) return", "assert double(2) == 4"), ("not_loaded", 0, 1)),
    "an exit when called": (asserts("import os\ndef f(): os._exit(0)", "assert f() == 4"), ("ended", 0, 1)),
}

NO_VERDICT: dict[str, tuple[FunctionTests | AssertTests, str]] = {
    "a coroutine": (asserts(WRONG, "async def test_a(): assert double(2) == 4"), "is a coroutine or a generator"),
    "a generator": (
        asserts(WRONG, "def test_a():\n    assert double(2) == 4\n    yield"),
        "is a coroutine or a generator",
    ),
    "a parameter": (asserts(WRONG, "def test_a(x): assert double(x) == 4"), "has parameters"),
    "nothing asked": (asserts(WRONG, "x = 1"), "do not ask the code for anything"),
    "no text": (asserts(WRONG), "the tests test nothing"),
    "no case": (FunctionTests(WRONG, "double", ()), "the tests test nothing"),
    "no Python": (asserts(WRONG, "assert ("), "SyntaxError"),
    "no Python, and a candidate that exits": (asserts("import os\nos._exit(0)", "assert ("), "SyntaxError"),
}


def shared_verdict(sandbox: Sandbox, job: FunctionTests | AssertTests) -> Verdict:
    program, stdin, nonce = shared.question(job)
    return shared.verdict(sandbox.output(Program(program, stdin)), nonce)


@pytest.mark.parametrize("name", VERDICTS)
def test_both_grades_say_the_same(sandbox: Sandbox, name: str) -> None:
    job, wanted = VERDICTS[name]
    apart, in_process = sandbox.run(job), shared_verdict(sandbox, job)
    assert (apart.status, apart.passed, apart.total) == wanted, apart
    assert (in_process.status, in_process.passed, in_process.total) == wanted, in_process
    assert (apart.grade, in_process.grade) == ("split", "shared")


@pytest.mark.parametrize("name", NO_VERDICT)
def test_tests_that_cannot_decide_have_no_verdict_in_either(sandbox: Sandbox, name: str) -> None:
    job, why = NO_VERDICT[name]
    for judge in (sandbox.run, lambda job: shared_verdict(sandbox, job)):
        with pytest.raises(SandboxError, match=why):
            judge(job)


def test_the_program_needs_nothing_but_python(tmp_path: Path) -> None:
    program, stdin, nonce = shared.question(asserts(RIGHT, "assert math.isclose(double(0.1), 0.2)"))
    (tmp_path / "program.py").write_text(program)
    words = [sys.executable, "-I", "-S", "program.py"]
    ran = subprocess.run(words, cwd=tmp_path, input=stdin, capture_output=True, text=True, timeout=60)
    found = shared.verdict(Output(ran.stdout, ran.stderr, ran.returncode, 0.1), nonce)
    assert (found.status, found.passed, found.total) == ("passed", 1, 1), ran.stderr


def test_a_python_that_is_too_old_is_no_failure_of_the_candidate(sandbox: Sandbox, monkeypatch: Any) -> None:
    for module in (wire, candidate, tester, in_process):
        ast.parse(inspect.getsource(module), feature_version=shared._OLDEST)
    monkeypatch.setattr(shared, "_OLDEST", (4, 0))
    with pytest.raises(SandboxError, match=r"the server has Python 3\.\d+, and they need 4\.0"):
        shared_verdict(sandbox, asserts(RIGHT, "assert double(2) == 4"))


ONE_PASSED = [{"total": 1}, {"passed": True}, {"end": True}]


def said(lines: Any, nonce: str = "abc", code: int = 0) -> Verdict:
    text = lines if isinstance(lines, str) else json.dumps(lines)
    return shared.verdict(Output(f"x\n{nonce} {text}\n", "", code, 0.1), "abc")


def test_a_verdict_is_what_follows_the_nonce_of_a_program_that_ended_well() -> None:
    assert said(ONE_PASSED) == Verdict("passed", 1, 1, 0.1, "", "shared")
    assert said(ONE_PASSED, nonce="abd").status == "ended"
    assert said(ONE_PASSED, code=1).status == "ended"
    slow = shared.verdict(Output("", "", -9, 3.0, timed_out=True), "abc")
    assert (slow.status, slow.passed, slow.detail, slow.grade) == ("timed_out", 0, "stopped after 3.0 s", "shared")
    memory = shared.verdict(Output("", "Traceback\nMemoryError\n", 1, 0.1), "abc")
    assert (memory.status, memory.grade) == ("out_of_memory", "shared")


FORGED = {
    "nothing": "",
    "half of it": "[1",
    "too deep": "[" * 100_000,
    "no line": [],
    "no list": {"end": True},
    "no object": [1],
    "no total": ONE_PASSED[1:],
    "no end": ONE_PASSED[:2],
    "a number that passed": [{"total": 1}, {"passed": 1}, {"end": True}],
    "another word": [{"total": 1}, {"won": True}, {"end": True}],
}


@pytest.mark.parametrize("name", FORGED)
def test_a_nonce_with_another_text_is_no_verdict(name: str) -> None:
    assert said(FORGED[name]) == Verdict("ended", 0, 1, 0.1, "it wrote its own verdict", "shared")


def test_only_the_first_reason_is_written_because_servers_cut_outputs() -> None:
    lines = in_process._Lines()
    for number in range(3):
        lines.test(False, f"why {number}")
    assert lines.content == [{"passed": False, "detail": "why 0"}, {"passed": False}, {"passed": False}]
