"""Puzzles of reasoning-gym: which rows a source makes, and what their answers get."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from burnish.config.names import PUZZLE_ROWS, PUZZLE_SEEDS, UNSOUND_PUZZLES
from burnish.config.schema_data import DataSource, Source
from burnish.errors import DataError

pytest.importorskip("reasoning_gym", reason="needs burnish[reasoning-gym]")

from burnish.data import puzzles
from burnish.data.overlap import find_overlap
from burnish.data.prompts import read_prompts
from burnish.data.sources import puzzle_rows

QUICK = {"chain_sum": {"max_terms": 3}, "gcd": {}, "letter_counting": {"weight": 2}}
SLOW = ("intermediate_integration", "knight_swap", "sokoban", "zebra_puzzles")
"""About a second for an item."""
NO_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
NONSENSE = ("banana xyzzy", "I don't know", "")
MOST_FOR_NONSENSE = {
    "acre": 0.17,  # "on" is part of "don't"
    "arc_agi": 0.05,
    "figlet_font": 0.3,
    "letter_jumble": 0.14,
    "rearc": 0.05,
    "spell_backward": 0.34,
}
"""Above 0.011, for tasks that are not refused: shares of letters, or of a format."""


def source(tasks: dict[str, Any], **fields: Any) -> DataSource:
    return TypeAdapter(Source).validate_python({"reasoning_gym": tasks, **fields})


def puzzle(row: Mapping[str, Any]) -> puzzles.Puzzle:
    return puzzles.Puzzle(**row["reasoning_gym"], item=row)


def test_rows_have_a_question_an_answer_and_what_scores_them() -> None:
    rows = [row for _, row in puzzle_rows(source(QUICK, size=8, seed=1))]
    assert [row["domain"] for row in rows] == [
        *("letter_counting", "chain_sum", "gcd", "letter_counting"),
        *("letter_counting", "chain_sum", "gcd", "letter_counting"),
    ]
    total = rows[1]
    assert total["reasoning_gym"] == {"task": "chain_sum", "parameters": {"max_terms": 3}}
    assert total["metadata"]["source_dataset"] == "chain_sum"
    asked = re.search(r"[-+ \d]+(?= =)", total["question"])
    assert asked is not None
    assert sum(map(int, re.findall(r"[-+]?\d+", asked[0].replace(" ", "")))) == int(total["answer"])


def test_the_same_settings_make_the_same_rows_and_a_limit_only_takes_fewer() -> None:
    once = list(puzzle_rows(source({"list_functions": {}, "ransom_note": {}}, size=12, seed=5)))
    again = list(puzzle_rows(source({"list_functions": {}, "ransom_note": {}}, size=12, seed=5)))
    fewer = list(puzzle_rows(source({"list_functions": {}, "ransom_note": {}}, size=12, seed=5, limit=7)))
    assert once == again
    assert fewer == once[:7]


def test_seeds_share_no_rows() -> None:
    """The package makes row i of seed s with the number s + i, so that neighbouring seeds share nearly all of them."""
    train, _ = read_prompts([source({"number_sorting": {}}, size=200, seed=0)])
    held_out, _ = read_prompts([source({"number_sorting": {}}, size=200, seed=1)])
    overlap = find_overlap(((p.id, p.text) for p in train), ((p.id, p.text) for p in held_out))
    assert overlap.shared == overlap.repeated_train == overlap.repeated_heldout == ()
    assert PUZZLE_ROWS * PUZZLE_SEEDS == 1 << 32  # NumPy takes no higher seed


def test_template_domain_and_system_prompt_of_the_source() -> None:
    one = source({"gcd": {}}, size=1, prompt_template="Q: {question}\nA:", domain="numbers")
    (prompt,), (understanding,) = read_prompts([one])
    assert prompt.text is not None
    assert prompt.text.startswith("Q: Find the Greatest Common Divisor")
    assert prompt.domain == "numbers"
    assert understanding.lines()[0] == "reasoning_gym: 1 rows, layout prompt"
    (asked,), _ = read_prompts([source({"gcd": {}}, size=1, system_prompt="Be brief.")])
    assert [message.role for message in asked.messages or ()] == ["system", "user"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"chain_sun": {}}, "no task 'chain_sun'(?s:.*)did you mean 'chain_sum'"),
        ({"composite": {}}, "no task 'composite'"),
        ({"chain_sum": {"max_term": 3}}, "no parameter 'max_term'(?s:.*)did you mean 'max_terms'"),
        ({"chain_sum": {"size": 3}}, "no parameter 'size'(?s:.*)next to reasoning_gym"),
        ({"chain_sum": {"min_terms": 9}}, "refuses its parameters: AssertionError: max_terms must be >= min_terms"),
        ({"gcd": {"weight": 0}}, "weight of task 'gcd' is 0"),
        ({"gcd": {"weight": True}}, "weight of task 'gcd' is True"),
    ],
)
def test_what_cannot_be_made_is_named(tasks: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(puzzle_rows(source(tasks, size=4)))


def test_weights_hold_at_every_point() -> None:
    order = list(puzzles._in_turns({"a": 3.0, "b": 1.0, "c": 1.0}, 1000))
    for stop in range(1, 1001):
        for name, share in (("a", 0.6), ("b", 0.2), ("c", 0.2)):
            assert abs(order[:stop].count(name) - share * stop) <= 1


def test_answers_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    rows = list(puzzle_rows(source({task: {} for task in EVALUATING}, size=len(EVALUATING))))
    score = puzzles.Scorer()
    for _, row in rows:
        for answer in (touch, f"[{touch}]", f"[c for c in [{touch}]]", f"1 + {touch}"):
            assert score(puzzle(row), answer) <= 0.011, row["domain"]
    assert len(rows) == len(EVALUATING)
    assert not mark.exists()


EVALUATING = sorted(puzzles._EVALUATE | puzzles._PARSE)


def test_no_other_task_evaluates_answers() -> None:
    """A guard for other versions of the package: where `eval` or `parse_expr` occurs, the answer is guarded, or it is
    known that only the task's own text gets there."""
    import reasoning_gym

    own_text_only = {"basic_arithmetic", "bitwise_arithmetic", "codeio", "generators_00_49", "generators_50_99"}
    own_text_only |= {"number_sorting", "propositional_logic"}
    root = Path(reasoning_gym.__file__).parent
    found = {
        file.stem for file in root.rglob("*.py") if re.search(r"\b(?:eval|exec|parse_expr|sympify)\(", file.read_text())
    }
    assert found - own_text_only == set(EVALUATING)


@pytest.mark.parametrize(
    "text", ["x**2 + 3*x", "(1/2)*x**(1/2) + C", "sin(2*x)/2 - log(x)", "4*(10 - 3 - 1)", "2.5*exp(-x)", " 6*4 "]
)
def test_mathematics(text: str) -> None:
    assert puzzles.is_mathematics(text)


CODE = ("x.__class__", "f'{x}'", "open(1)", "[1]", "a_b", "9!", "", "x:=1")


@pytest.mark.parametrize("text", [*CODE, "9**9**9", "9**99999999", "9**(9**9)", "x**2.5e9"])
def test_not_mathematics(text: str) -> None:
    assert not puzzles.is_mathematics(text)


def test_lists_of_python_still_get_what_the_task_gives() -> None:
    ((_, row),) = puzzle_rows(source({"spiral_matrix": {}}, size=1))
    score = puzzles.Scorer()
    assert score(puzzle(row), row["answer"]) == 1
    assert score(puzzle(row), str(row["answer"].split())) == 0.1


def test_a_task_scores_with_the_parameters_that_it_was_made_with() -> None:
    """The numbers of puzzle24 are up to 10, unless it is made with fewer."""
    score = puzzles.Scorer()
    ((_, usual),) = puzzle_rows(source({"puzzle24": {}}, size=1))
    ((_, fewer),) = puzzle_rows(source({"puzzle24": {"max_value": 5}}, size=1))
    assert score(puzzle(usual), "6 * 4 * 1 * 1") == 1
    assert score(puzzle(fewer), "6 * 4 * 1 * 1") == 0.01


def sweep(tasks: list[str], each: int) -> None:
    score, seen = puzzles.Scorer(), set()
    for where, row in puzzle_rows(source({task: {} for task in tasks}, size=each * len(tasks), seed=2)):
        task, answer = row["domain"], row["answer"]
        seen.add(task)
        assert (answer is None) == (task in NO_GOLD), where
        if answer is not None:
            assert score(puzzle(row), answer) == 1, where
        if task in UNSOUND_PUZZLES:
            continue
        for text in (*NONSENSE, None):
            try:
                paid = score(puzzle(row), text)
            except ValueError:
                assert task == "prime_factorization"
                continue
            assert paid <= MOST_FOR_NONSENSE.get(task, 0.011), f"{where}: {text!r}"
    assert seen == set(tasks)


def test_gold_gets_everything_and_nonsense_nothing() -> None:
    sweep(["arc_agi", "chain_sum", "graph_color", "countdown", "prime_factorization", "rearc", "spell_backward"], 3)


@pytest.mark.slow
def test_gold_gets_everything_and_nonsense_nothing_in_every_task() -> None:
    sweep([task for task in puzzles.known_tasks() if task not in SLOW], 6)
    sweep(list(SLOW), 2)


@pytest.mark.slow
def test_every_task_makes_the_same_rows_in_every_process() -> None:
    everything = source({task: {} for task in puzzles.known_tasks()}, size=len(puzzles.known_tasks()), seed=4)
    assert json.dumps(list(puzzle_rows(everything))) == json.dumps(list(puzzle_rows(everything)))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(DataError, match=r"needs the package reasoning-gym(?s:.*)burnish\[reasoning-gym\]"):
        puzzles.Scorer()
