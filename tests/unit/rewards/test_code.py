"""The reward `code`: what counts as the program, and whose tests are whose."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from confining import where_confined

from burnish.errors import ConfigError
from burnish.rewards.builtins.code import Code, program
from burnish.rewards.builtins.code_tests import CodeTask, task_of_row
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.sandbox.job import AssertTests, FunctionTests, ProgramTests, Verdict
from burnish.types import Score

HUMAN_EVAL = {
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef double(x):\n    """Twice x."""\n',
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == helper(4)\n    assert candidate(3) == 6",
}
MBPP = {
    "code": "def sum(a, b): return a + b",
    "test_list": ["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"],
    "test_imports": ["import math"],
}
APPS = {"input_output": json.dumps({"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", ["4", "6"]]})}
APPS_CALLS = {"input_output": {"inputs": [[[3, 1], 2]], "outputs": [[[1, 3]]], "fn_name": "order"}}
LIVE = {
    "public_test_cases": json.dumps([{"input": '[3, 1]\n"a"', "output": "[1, 3]", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "order"}),
}
LIVE_PROGRAM = {"public_test_cases": [{"input": "1", "output": "2", "testtype": "stdin"}]}
ROLL = {"test_cases": json.dumps([{"assert_code": "assert f(1) == 2"}, {"assert_code": "assert f(2) == 4"}])}


def task_of(columns: dict[str, Any], answer: Any = None) -> CodeTask:
    task = task_of_row(columns, answer)
    assert task is not None
    return task


def test_layouts_are_recognised() -> None:
    human_eval = AssertTests("code", (HUMAN_EVAL["test"],), prelude=HUMAN_EVAL["prompt"], entry="double")
    assert task_of(HUMAN_EVAL).make("code") == human_eval
    job = task_of(MBPP).make("code")
    assert isinstance(job, AssertTests)
    assert (job.texts, job.entry, job.prelude) == (tuple(MBPP["test_list"]), "sum", "import math\n")
    assert task_of(APPS).make("code") == ProgramTests("code", (("1\n", "2\n"), ("2\n3", "4\n6")))
    numbered = {"inputs": [[{"1": 2}, {"3": 4}]], "outputs": [[{"5": 6}]], "fn_name": "order"}
    for columns, arguments, expected in (
        (APPS_CALLS, ([3, 1], 2), [[1, 3]]),
        ({"input_output": numbered}, ({1: 2}, {"3": 4}), [{5: 6}]),  # as APPS has it
        (LIVE, ([3, 1], "a"), [1, 3]),
    ):
        job = task_of(columns).make("code")
        assert isinstance(job, FunctionTests)
        assert (job.entry, job.cases[0].arguments, job.cases[0].expected) == ("order", arguments, expected)
    assert task_of(LIVE_PROGRAM).make("code") == ProgramTests("code", (("1", "2"),))
    assert task_of(ROLL).make("code") == AssertTests("code", ("assert f(1) == 2", "assert f(2) == 4"))
    held = json.dumps({"inputs": ["1"], "outputs": ["2"]})
    assert task_of({}, held).make("code") == ProgramTests("code", (("1", "2"),))
    held = json.dumps({"inputs": [], "outputs": [], "assert_case": ["assert f(1)"]})
    assert task_of({}, held).make("code") == AssertTests("code", ("assert f(1)",))
    assert task_of_row({"test": "x"}, "7") is None
    assert task_of_row({}, None) is None


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"input_output": "{"}, "column 'input_output' is not valid JSON"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "as many outputs as inputs"),
        ({"private_test_cases": "eJxrYJ0"}, "column 'private_test_cases' is not valid JSON"),
        ({"test_cases": [{"name": "x"}]}, "an object has name, but neither"),
        ({"test_cases": {"a": 1}}, "must be a list of objects"),
        ({"test_list": [1]}, "test_list must be a text or a list of texts"),
        ({"test_list": [], "test": None}, "column 'test_list' is empty: it tests nothing"),
    ],
)
def test_tests_that_cannot_be_read_are_an_error(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(NoScoreError, match=why):
        task_of_row(columns, None)


def test_the_last_block_that_defines_the_function_is_the_program() -> None:
    task = task_of({"test_list": ["assert double(1) == 2"]})
    prelude = "```python\ndef double(x):\n    return x\n```\nBetter:\n```python\ndef double(x):\n    return 2 * x\n```"
    usage = "\nUse it:\n```python\nprint(double(1))\n```\n```bash\nls\n```"
    assert program(prelude + usage, task) == "def double(x):\n    return 2 * x\n"
    assert program("def double(x): return 2 * x", task) == "def double(x): return 2 * x"
    assert program("```py\nx = 1", task) == "x = 1"  # cut off
    assert program(f"{usage}\n```\ndef double(x): return x\n```", task) == "def double(x): return x\n"


RESPONSES = {
    "an output": "```python\nprint(4)\n```\nOutput:\n```\n4\n```",
    "an item of a list": "1. So:\n   ```python\n   print(4)\n   ```",
    "a fence in a text": '```python\ndef f():\n    """\n    ```\n    """\nprint(4)\n```',
    "thoughts": "<think>```python\nprint(</think>\n```python\nprint(4)\n```",
    "the future": "```python\nfrom __future__ import annotations\nprint(4)\n```",
    "no fence": "print(4)",
}


@pytest.mark.parametrize("name", RESPONSES)
def test_what_a_response_means(name: str) -> None:
    task = task_of(APPS)
    code = program(RESPONSES[name], CodeTask(task.make, header="import math\n"))
    compile(code, "program.py", "exec")
    assert code.rstrip().endswith("print(4)")
    assert "import math" in code


def test_a_function_without_a_body_defines_nothing() -> None:
    task = task_of({"test_list": ["assert double(1) == 2"]})
    stub = 'def double(x):\n    """Twice x."""\n    ...\n'
    good = "from __future__ import annotations\ndef double(x): return 2 * x\n"
    assert program(f"```python\n{good}```\nIts signature:\n```python\n{stub}```", task) == good
    assert not task.is_defined_in("class A:\n    def double(self, x): return x")
    assert task.is_defined_in("class Solution:\n    def double(self, x): return x")
    assert task.is_defined_in("double: object = lambda x: x")
    assert task.is_defined_in("def double(x) return x")  # no Python, but that is what it tries


def test_a_response_may_continue_the_beginning_or_write_all_of_it_again() -> None:
    task = task_of(HUMAN_EVAL)
    assert program("    return 2 * x\n", task) == HUMAN_EVAL["prompt"] + "    return 2 * x\n"
    whole = "def double(x):\n    return helper(x) + x\n"
    assert program(f"```python\n{whole}```", task) == "import math\n\ndef helper(x):\n    return x\n\n" + whole


@pytest.mark.parametrize("body", ["    return 2 * x\n", "return 2 * x\n", "        return 2 * x\n"])
def test_a_fenced_body_continues_the_beginning_however_it_is_indented(body: str) -> None:
    found = program(f"```python\n{body}```", task_of(HUMAN_EVAL))
    names: dict[str, Any] = {}
    exec(found, names)
    assert names["double"](4) == 8


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="option tier"):
        Code(tier="docker")
    with pytest.raises(ConfigError, match="must be positive"):
        Code(seconds=0)
    with pytest.raises(ConfigError, match="are for a sandbox on another machine"):
        Code(grade="shared")
    with pytest.raises(ConfigError, match=r"option tier(?s:.*)programs run at http://host"):
        Code(tier="landlock", url="http://host")
    with pytest.raises(ConfigError, match="names NO_SUCH, which is not set"):
        Code(url="http://host", token_variable="NO_SUCH")


def test_a_line_break_after_a_token_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = []
    monkeypatch.setattr("burnish.sandbox.remote.RemoteSandbox", lambda url, token, **_: tokens.append(token))
    monkeypatch.setenv("MOUNTED", "0123456789abcdef\n")
    Code(url="http://host", token_variable="MOUNTED")
    assert tokens == ["0123456789abcdef"]
    monkeypatch.setenv("MOUNTED", "\n")
    with pytest.raises(ConfigError, match="names MOUNTED, which is not set"):
        Code(url="http://host", token_variable="MOUNTED")


def made(**options: Any) -> Code:
    """The reward, on a machine with a tier that confines."""
    with where_confined():
        return Code(seconds=60.0, **options)


@pytest.mark.slow
def test_scores() -> None:
    code, share = made(), made(score="fraction")
    assert code("    return 2 * x\n", **HUMAN_EVAL) == 1.0
    assert code("    return 4\n", **HUMAN_EVAL) == 0.0
    assert share("    return 4\n", **HUMAN_EVAL) == 0.5
    assert code("def sum(a, b): return a + b", **MBPP) == 1.0
    assert code("def add(a, b): return a + b", **MBPP) == 0.0
    assert code("for line in open(0): print(2 * int(line))", **APPS) == 1.0
    calls = "class Solution:\n    def order(self, a: List[int], b) -> List[int]: return sorted(a)"
    assert code(calls, **APPS_CALLS) == 1.0
    assert code(calls, **LIVE) == 1.0
    assert code("import os\nos._exit(0)", **ROLL) == 0.0
    assert code("anything", level=3) is None


@pytest.mark.slow
def test_tests_that_test_nothing_are_no_score() -> None:
    with pytest.raises(NoScoreError, match="do not ask the code for anything"):
        made()("def f(): return 1", test_list=["assert 1 == 1 + 0"])


@pytest.mark.parametrize(
    ("allowed", "grade", "score"),
    [
        ("shared", "split", Score(1.0, {"shared": 0.0})),
        ("shared", "shared", Score(1.0, {"shared": 1.0})),
        ("split", "split", 1.0),
    ],
)
def test_scores_name_tests_in_the_candidate_s_process_where_they_are_allowed(
    allowed: Any, grade: Any, score: Score | float, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_judged = SimpleNamespace(run=lambda job: Verdict("passed", 2, 2, 0.1, grade=grade))
    monkeypatch.setattr("burnish.sandbox.remote.RemoteSandbox", lambda *given, **named: has_judged)
    assert Code(url="http://host", grade=allowed)("def double(x): return 2 * x", **HUMAN_EVAL) == score
