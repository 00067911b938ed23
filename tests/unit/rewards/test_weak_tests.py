"""Programs that solve nothing, and the tests that they pass."""

from typing import Any

import pytest

from burnish.errors import BurnishError
from burnish.rewards import ProcessRewardScorer
from burnish.rewards.builtins.code_tests import task_of_row, trivial_programs
from burnish.rewards.gold import WeakTests, find_weak_tests
from burnish.types import Prompt

HELPED = {"test_list": ["assert near(f(2), 4)"], "code": "def f(x): return 2 * x"}
EVEN = {"test_list": ["assert f(2) == True"], "code": "def f(x): return x % 2 == 0"}
DOUBLE = {"test_list": ["assert f(2) == 4"]}
SILENT = {"input_output": {"inputs": ["1"], "outputs": [""]}}
BROKEN = {"input_output": {"inputs": ["1"], "outputs": []}}


def test_every_function_that_the_tests_call_is_written_in_a_trivial_way() -> None:
    task = task_of_row({"test_list": ["assert len(f(2)) == g(3)"]}, None)
    assert task is not None
    programs = trivial_programs(task)
    written = [f"def {name}(*arguments, **named): return None" for name in "fg"]
    assert programs["returns None"].splitlines() == written
    assert set(programs) > {"is empty", "ends the program", "returns what is equal to everything"}
    silent = task_of_row(SILENT, None)
    assert silent is not None
    assert trivial_programs(silent) == {"is empty": ""}


def test_a_helper_of_the_tests_may_be_written_by_the_response() -> None:
    task = task_of_row(HELPED, None)
    assert task is not None
    wanted = [f"def {name}(*arguments, **named): return {value}" for name, value in (("near", True), ("f", None))]
    assert trivial_programs(task)["defines near, which the tests use"].splitlines() == wanted


@pytest.fixture
def scorer(make_scorer: Any) -> ProcessRewardScorer:
    reward = {"name": "code", "options": {"seconds": 60.0}, "timeout_seconds": 120}
    try:
        return make_scorer(reward, columns=["test_list", "code", "input_output"])
    except BurnishError as error:
        pytest.skip(f"no sandbox here: {error.message}")


@pytest.mark.slow
def test_rows_with_weak_tests_are_named(scorer: ProcessRewardScorer) -> None:
    rows: dict[str, dict[str, Any]] = {
        **{"even": EVEN, "double": DOUBLE, "silent": SILENT, "broken": BROKEN, "none": {}, "helped": HELPED},
        "sorts": {"test_list": ["a = [2, 1]; f(a); assert a == sorted(a)"]},
        "finds": {"test_list": ["assert f([1, 2]) == []"]},
        "differs": {"test_list": ["assert f(1) != f(1)"]},
    }
    prompts = [Prompt(id=name, text="Write it.", columns=columns) for name, columns in rows.items()]
    assert find_weak_tests(prompts, scorer, "code", "code") == [
        WeakTests("even", "returns True"),
        WeakTests("silent", "is empty"),
        WeakTests("helped", "defines near, which the tests use"),
        WeakTests("sorts", "empties its arguments"),
        WeakTests("finds", "returns []"),
        WeakTests("differs", "returns NaN"),
    ]


@pytest.mark.slow
def test_schemas_that_anything_is_valid_against_are_named(make_scorer) -> None:
    pytest.importorskip("jsonschema")
    schemas = {"any": {}, "object": {"type": "object"}, "strict": {"type": "object", "required": ["a"]}, "none": None}
    prompts = [Prompt(id=name, text="Write it.", columns={"schema": schema}) for name, schema in schemas.items()]
    scorer = make_scorer({"name": "json_schema", "timeout_seconds": 60}, columns=["schema"])
    found = find_weak_tests(prompts, scorer, "json_schema", "json_schema")
    anything = [("any", f"is {text}") for text in ("null", "{}", "[]", "0", '""')]
    assert [(weak.prompt_id, weak.response) for weak in found] == [*anything, ("object", "is {}")]
