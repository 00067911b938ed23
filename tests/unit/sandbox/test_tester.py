"""What counts as equal, and what a text of tests counts."""

import json
import os
import threading
from typing import Any

import pytest

from burnish.sandbox.candidate import serve
from burnish.sandbox.tester import TestReport, equal, judge
from burnish.sandbox.warm import Pipe

CODE = """
def double(x): return 2 * x
def up(n): yield from range(n)
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
"""


@pytest.fixture
def judged(tmp_path: Any) -> Any:
    """Judges code by tests, with both sides in threads of this process; returns the tester's lines."""

    def run(*texts: str, code: str = CODE, **tests: Any) -> list[dict[str, Any]]:
        there, back = os.pipe(), os.pipe()
        candidate = threading.Thread(target=serve, args=(code, Pipe(there[0], back[1], 1 << 20)), daemon=True)
        candidate.start()
        with (tmp_path / "verdict").open("wb") as file:
            tests = {"prelude": "", "entry": None, "texts": texts, **tests}
            judge(tests, Pipe(back[0], there[1], 1 << 20), TestReport(file.fileno()))
        os.close(there[1])
        candidate.join(60)
        return [json.loads(line) for line in (tmp_path / "verdict").read_text().splitlines()]

    return run


def passed(lines: list[dict[str, Any]]) -> list[bool]:
    assert lines[-1] == {"end": True}
    return [line["passed"] for line in lines if "passed" in line]


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (10**6, 10.0**6 + 1, False),
        (1.0, 1, True),
        (1.0, 10**400, False),
        (True, 1, False),
        (1, True, False),
        (0.1 + 0.2, 0.3, True),
        (1.0, 1.001, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [1], False),
        ({"a": 0.3}, {"a": 0.1 + 0.2}, True),
        ({"a": 1}, {"b": 1}, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("inf"), True),
        (float("inf"), float("nan"), False),
        ({1, 2}, [1, 2], False),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_equal(expected: Any, found: Any, same: bool) -> None:
    assert equal(expected, found, 1e-6) is same


def test_every_assertion_counts(judged: Any) -> None:
    text = "assert double(2) == 4\nassert double(2) == 5\nassert double('a') == 'aa'\nassert nowhere(1)\nassert True"
    lines = judged(text)
    assert passed(lines) == [True, False, True, False]
    assert lines[0] == {"total": 4}
    assert lines[2]["detail"] == "not so: double(2) == 5"
    assert "the code does not define 'nowhere'" in lines[4]["detail"]


def test_an_assertion_counts_once_however_often_it_is_reached(judged: Any) -> None:
    """Else the code would say how many tests there are."""
    assert passed(judged("for n in up(1000):\n    assert n >= 0\nassert double(1) == 3")) == [True, False]
    assert passed(judged("for n in up(9):\n    assert n < 5")) == [False]


def test_what_was_not_reached_because_something_raised_has_failed(judged: Any) -> None:
    assert passed(judged("assert double(1) == 2\nx = nowhere(1)\nassert double(2) == 4")) == [True, False, False]
    assert passed(judged("for n in up(0):\n    assert n")) == [False]


def test_a_text_that_asserts_nothing_but_would_have_raised_is_one_test(judged: Any) -> None:
    text = "try:\n    double(None)\n    assert False\nexcept TypeError:\n    pass"
    assert passed(judged(text)) == [True]
    assert passed(judged(text.replace("None", "1"))) == [False]


def test_errors_of_the_code_are_those_that_the_tests_know(judged: Any) -> None:
    code = "class Mine(ValueError): pass\ndef f(x): raise Mine('bad')"
    text = "try:\n    f(1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'bad'"
    assert passed(judged(text, code=code)) == [True]


def test_tests_that_end_themselves_have_failed(judged: Any) -> None:
    assert passed(judged("import sys\nif double(1) == 2: sys.exit(1)\nassert double(2) == 4")) == [False, False]
    assert passed(judged("import sys\nif double(1) == 2: sys.exit()")) == [False]
    assert passed(judged("import unittest\nassert double(1) == 2\nunittest.main()")) == [True]


def test_objects_of_the_code_are_not_told_what_is_expected(judged: Any) -> None:
    code = "class All:\n    def __contains__(self, item): return True\n    def __iter__(self): return iter([1])\n"
    code += "def f(x): return All()\nclass Left:\n    left = len\ndef g(x): return Left()"
    assert passed(judged("assert 7 in f(1)\nassert 1 in f(1)", code=code)) == [False, True]
    assert passed(judged("n = g(1)\nassert f(n.left) == 2", code=code)) == [False]


BROKEN = {
    "asks only itself": "def double(x): return 2 * x\nassert double(1) == 2",
    "a coroutine": "async def test_it():\n    assert double(1) == 3",
    "a parameter": "def test_it(x):\n    assert double(x) == 3",
    "no Python": "assert (",
    "a function as an argument": "assert double(lambda x: x)",
    "a function as an argument of a method": (
        "import unittest\nclass TestIt(unittest.TestCase):\n    def test_it(self): double(lambda x: x)"
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_tests_that_cannot_decide_say_so(judged: Any, name: str) -> None:

    assert "broken" in judged(BROKEN[name])[-1]


VALUES = {
    "an integer of many digits": "10**5000",
    "a decimal that signals": "__import__('decimal').Decimal('sNaN')",
    "an integer beyond floats": "10**400",
    "a long text": "'x' * 100_000",
    "half a character": "'\\ud800'",
    "nothing hashable": "[[{}]]",
}


@pytest.mark.parametrize("name", VALUES)
def test_no_value_upsets_the_tests(judged: Any, name: str) -> None:
    code = f"def f(x):\n    x.append({VALUES[name]})\n    return {VALUES[name]}"
    case = {"arguments": [[]], "named": {"dict": []}, "expected": {"float": "0x1p0"}, "wrapped": False}
    assert passed(judged(code=code, entry="f", tolerance=1e-6, cases=[case])) == [False]
    assert passed(judged("x = f([])\nassert x == 1.5\nassert {1: 2}[f([1])]", code=code)) == [False, False]


def test_a_function_may_be_called_as_a_builtin_is(judged: Any) -> None:
    code = "def sum(a, b): return a + b"
    assert passed(judged("assert sum(1, 2) == 3", entry="sum", code=code)) == [True]
    assert "broken" in judged("assert sum([1, 2]) == 3", code=code)[-1]


def test_objects_of_the_code_are_used_where_they_are(judged: Any) -> None:
    text = (
        "stack = Stack()\nstack.push(3)\nassert len(stack) == 1\nassert stack.items == [3]\n"
        "assert stack.pop() == 3\nassert not stack\nassert stack != 3\nassert list(up(3)) == [0, 1, 2]"
    )
    assert passed(judged(text)) == [True] * 6


def test_an_array_of_bytes_is_changed_where_the_tests_have_it(judged: Any) -> None:
    text = "data = bytearray(b'abc')\nf(data)\nassert data == b'xbc'"
    assert passed(judged(text, code="def f(data): data[0] = 120")) == [True]


def test_functions_of_tests_and_cases_are_run(judged: Any) -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 4"
    assert passed(judged(check, entry="double")) == [True, True]
    plain = "class TestDouble:\n    def test_one(self):\n        assert double(1) == 2\n        assert double(1) == 3"
    assert passed(judged(plain)) == [True, False]
    assert passed(judged("from solution import double as f\nassert f(1) == 2")) == [True]
    functions = "def test_one():\n    assert double(1) == 2\ndef test_two():\n    assert double(1) == 3"
    assert passed(judged(functions)) == [True, False]
    cases = (
        "import unittest\nclass TestDouble(unittest.TestCase):\n"
        "    def test_one(self): self.assertEqual(double(1), 2)\n"
        "    def test_two(self): self.assertEqual(double(1), 3)"
    )
    lines = judged(cases)
    assert passed(lines) == [False]
    assert "AssertionError: 2 != 3" in lines[1]["detail"]
    inside = cases.replace("self.assertEqual(double(1), 3)", "assert double(1) == 2").replace("TestDouble", "T")
    assert passed(judged(inside + "\n    def test_three(self): super(T, self).setUp()")) == [True]


def test_code_that_does_not_load_is_told(judged: Any) -> None:
    assert judged(code="1 / 0")[-1] == {"not_loaded": "ZeroDivisionError: division by zero"}
    assert judged(code="def f(:")[-1]["not_loaded"].startswith("SyntaxError")
    assert judged(code="x = '\ud800'")[-1]["not_loaded"].startswith("UnicodeEncodeError")
