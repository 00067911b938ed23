"""What counts as equal, and what a text of tests counts."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest

from burnish.sandbox.candidate import serve
from burnish.sandbox.tester import Report, equal, judge
from burnish.sandbox.wire import Pipe

CODE = """
def double(x): return 2 * x
def fill(box): box.append(1)
def up(n): yield from range(n)
def stops(x): raise StopIteration
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
class Solution:
    def triple(self, x): return 3 * x
"""


@pytest.fixture
def judged(tmp_path: Any) -> Any:
    """Judges code by tests, with both sides in threads of this process; returns the tester's lines."""

    def run(tests: dict[str, Any], code: str = CODE) -> list[dict[str, Any]]:
        there, back = os.pipe(), os.pipe()
        candidate = threading.Thread(target=serve, args=(code, Pipe(there[0], back[1], 1 << 20)), daemon=True)
        candidate.start()
        with (tmp_path / "verdict").open("wb") as file:
            judge({"prelude": "", "entry": None, **tests}, Pipe(back[0], there[1], 1 << 20), Report(file.fileno()))
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
    lines = judged({"texts": [text]})
    assert passed(lines) == [True, False, True, False]
    assert lines[1]["detail"] == "not so: double(2) == 5"
    assert "the code does not define 'nowhere'" in lines[3]["detail"]


def test_a_text_that_asserts_nothing_but_would_have_raised_is_one_test(judged: Any) -> None:
    text = "try:\n    double(None)\n    assert False\nexcept TypeError:\n    pass"
    assert passed(judged({"texts": [text]})) == [True]
    assert passed(judged({"texts": [text.replace("None", "1")]})) == [False]
    assert passed(judged({"texts": ["x = 1"]})) == []  # never asks the code


def test_arguments_are_changed_as_the_code_changes_them(judged: Any) -> None:
    assert passed(judged({"texts": ["box = [0]\nfill(box)\nassert box == [0, 1]"]})) == [True]


def test_objects_of_the_code_are_used_where_they_are(judged: Any) -> None:
    text = (
        "stack = Stack()\nstack.push(3)\nassert len(stack) == 1\nassert stack.items == [3]\n"
        "assert stack.pop() == 3\nassert not stack\nassert stack != 3\nassert list(up(3)) == [0, 1, 2]"
    )
    assert passed(judged({"texts": [text]})) == [True] * 6


def test_a_loop_of_the_tests_cannot_be_ended_from_the_code(judged: Any) -> None:
    assert passed(judged({"texts": ["assert all(map(stops, [1, 2]))"]})) == [False]


def test_the_prelude_is_not_the_code_s(judged: Any) -> None:
    tests = {"texts": ["assert helper(double(2)) == 5"], "prelude": "def helper(x): return x + 1"}
    assert passed(judged(tests, CODE + "\ndef helper(x): return 5\ndef double(x): return 0")) == [False]
    assert passed(judged(tests)) == [True]


def test_a_module_that_only_the_code_imports_is_known(judged: Any) -> None:
    assert passed(judged({"texts": ["assert math.isclose(double(0.1), 0.2)"]})) == [True]


def test_functions_of_tests_and_cases_are_run(judged: Any) -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 4"
    assert passed(judged({"texts": [check], "entry": "double"})) == [True, True]
    functions = "def test_one():\n    assert double(1) == 2\ndef test_two():\n    assert double(1) == 3"
    assert passed(judged({"texts": [functions]})) == [True, False]
    cases = (
        "import unittest\nclass TestDouble(unittest.TestCase):\n"
        "    def test_one(self): self.assertEqual(double(1), 2)\n"
        "    def test_two(self): self.assertEqual(double(1), 3)"
    )
    assert sorted(passed(judged({"texts": [cases]}))) == [False, True]


def test_cases_may_name_a_method(judged: Any) -> None:
    tests = {"entry": "triple", "tolerance": 1e-6, "cases": [{"arguments": [2], "named": {"dict": []}, "expected": 6}]}
    lines = judged(tests)
    assert lines[0] == {"total": 1}
    assert passed(lines) == [True]
    assert passed(judged({**tests, "entry": "Solution.triple"})) == [True]


def test_code_that_does_not_load_is_told(judged: Any) -> None:
    assert judged({"texts": []}, "1 / 0") == [{"not_loaded": "ZeroDivisionError: division by zero"}]
    (line,) = judged({"texts": []}, "def f(:")
    assert line["not_loaded"].startswith("SyntaxError")
