"""The math reward: where the answer stands, and what equals it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import ConfigError
from burnish.rewards.builtins import extraction
from burnish.rewards.builtins.math_answer import MathAnswer


@pytest.fixture(scope="module")
def math() -> MathAnswer:
    return MathAnswer()


RIGHT: list[tuple[str, Any]] = [
    ("She sold 48/2 = 24 clips, so 48+24 = 72.\n#### 72", "worked out\n#### 72"),
    ("The answer is \\boxed{7}. By the way, 8 is not.", "7"),
    ("first \\boxed{3}, no: \\boxed{\\frac{3}{4}}", "3/4"),
    ("\\boxed 5", "5"),
    ("The answer is **18**.", 18),
    ("Answer: $18.50", 18.5),
    ("The answer is 18 dollars.", "18"),
    ("the answer is 5 because 6 is wrong", 5),
    ("The final answer is \\(x=5\\).", 5),
    ("The answer is 3/4 cup", "\\frac{3}{4}"),
    ("so we add 70 and 2 and get 72 clips", "72"),
    ("it costs $5 + $6 = $11", 11),
    ("it is 10 - 15 = -5", "-5"),
    ("so $2\\sqrt{3}$.", "2\\sqrt{3}"),
    ("145", 145.0),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{5}", "x=5"),
    ("\\boxed{2,1}", "1,2"),
    ("The answers are 1 and 2", "1, 2"),
    ("\\boxed{\\text{Even}}", "\\text{even}"),
    ("\\boxed{x^2+2x+1}", "(x+1)^2"),
    ("\\boxed{\\frac{1}{2} + 3}", "3.5"),
    ("$5x - 7y + 11z + 4 = 0$", "5x - 7y + 11z + 4 = 0"),
    ("\\boxed{(3, \\pi/2)}", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ("The answer is 42\nHuman: what is 43?", 42),
    ("\\boxed{8}", ["7", "8"]),
]
WRONG: list[tuple[str, Any]] = [
    ("", "5"),
    ("no number at all", "5"),
    ("The answer is \\boxed{8}. But 7 was asked for: 7", "7"),
    ("#### 8\nThe answer is 7", "7"),
    ("so we get $2\\sqrt{3}$.", "3"),
    ("\\boxed{5x}", "5"),
    ("\\boxed{(1,2)}", "(2,1)"),
    ("\\boxed{}", "5"),
    ("####", "5"),
    ("The answer is 5 apples and 6 pears", "11"),
    ("1000001", "1000000"),
    ("-5", "5"),
    ("0.33", "1/3"),
    ("\\boxed{5", "6"),
    ("1 2 3 4 5 6 7 8", "7"),
    ("\\boxed{(1001)_2, (3021)_4, 5 | B}", "5"),
    ("5", "(1001)_2, (3021)_4, 5 | B"),
    ("The answer is ", "5"),
]


@pytest.mark.slow_cases("\\\\boxed{x^2+2x+1}-(x+1)^2")
@pytest.mark.parametrize(("response", "answer"), RIGHT)
def test_right_answers(math: MathAnswer, response: str, answer: Any) -> None:
    assert math(response, answer) == 1.0


@pytest.mark.slow_cases("1 2 3 4 5 6 7 8-7")
@pytest.mark.parametrize(("response", "answer"), WRONG)
def test_wrong_answers(math: MathAnswer, response: str, answer: Any) -> None:
    assert math(response, answer) == 0.0


@pytest.mark.parametrize("answer", [None, "", "  ", []])
def test_no_gold_answer_is_missing(math: MathAnswer, answer: Any) -> None:
    assert math("7", answer) is None


def test_the_answer_must_stand_where_required() -> None:
    boxed = MathAnswer(require="boxed")
    assert boxed("\\boxed{7}", 7) == 1.0
    assert boxed("The answer is 7", 7) == 0.0
    with pytest.raises(ConfigError, match="did you mean 'boxed'"):
        MathAnswer(require="boxd")


def test_boxed_balances_braces() -> None:
    assert extraction.boxed("a \\boxed{\\frac{1}{\\sqrt{2}}} b") == "\\frac{1}{\\sqrt{2}}"
    assert extraction.boxed("\\boxed{\\{1, 2\\}}") == "\\{1, 2\\}"
    assert extraction.boxed("cut \\boxed{12") == "12"
    assert extraction.boxed("nothing") is None


def _gsm8k(folder: Path) -> list[str]:
    files = [folder / "data" / "gsm8k" / name for name in ("train.jsonl", "test.jsonl")]
    return [json.loads(line)["answer"] for path in files for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_gsm8k_whole(math: MathAnswer, shared_dir: Path) -> None:
    """All 8,792 worked solutions score 1 as they stand and as a sentence; one more or one digit more scores 0."""
    golds = _gsm8k(shared_dir)
    assert len(golds) == 8792
    numbers = [gold.rpartition("####")[2].strip() for gold in golds]
    assert all(math(gold, gold) == 1.0 for gold in golds)
    sentences = [f"Add 3 to 4. They have {number} apples in all." for number in numbers]
    assert all(math(said, gold) == 1.0 for said, gold in zip(sentences, golds, strict=True))
    more = [str(float(number.replace(",", "")) + 1) for number in numbers]
    assert not any(math(f"#### {number}", gold) for number, gold in zip(more, golds, strict=True))
    assert not any(math(f"The answer is {number}1", gold) for number, gold in zip(numbers, golds, strict=True))


def _golds(folder: Path, name: str) -> list[Any]:
    files = {
        "svamp": ("math_eval/svamp_test.jsonl", "Answer"),
        "mawps": ("math_eval/mawps_test.jsonl", "target"),
        "math500": ("math_eval/math500_test.jsonl", "answer"),
        "roll": ("roll_math/math_benchmarks.jsonl", "ground_truth"),
    }
    if name == "one_shot_rlvr":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(folder / "data" / "one_shot_rlvr" / "dsr_sub.parquet")
        return [row["reward_model"]["ground_truth"] for row in table.to_pylist()]
    file, column = files[name]
    return [json.loads(line)[column] for line in (folder / "data" / file).read_text().splitlines()]


@pytest.mark.slow_cases("mawps-2065-0", "one_shot_rlvr-1209-1")
@pytest.mark.parametrize(
    ("name", "rows", "empty"),
    [("svamp", 1000, 0), ("mawps", 2065, 0), ("math500", 500, 0), ("roll", 560, 0), ("one_shot_rlvr", 1209, 1)],
)
def test_gold_answers_of_other_sets(math: MathAnswer, shared_dir: Path, name: str, rows: int, empty: int) -> None:
    """As they stand and at the end of a sentence; one row of One-Shot-RLVR has an empty answer: missing, never 0."""
    golds = _golds(shared_dir, name)
    assert len(golds) == rows
    assert sum(math(str(gold), gold) is None for gold in golds) == empty
    filled = [gold for gold in golds if str(gold).strip()]
    assert [gold for gold in filled if math(str(gold), gold) != 1.0] == []
    assert [gold for gold in filled if math(f"Hence the final answer is ${gold}$.", gold) != 1.0] == []


@pytest.mark.slow
def test_answers_of_other_rows_do_not_score(math: MathAnswer, shared_dir: Path) -> None:
    """Answers of two different problems are equal only where they mean the same."""
    golds = [gold for name in ("math500", "one_shot_rlvr") for gold in _golds(shared_dir, name) if gold.strip()]
    draw = random.Random(0)
    pairs = [(draw.choice(golds), draw.choice(golds)) for _ in range(500)]
    hits = [(gold, other) for gold, other in pairs if gold != other and math(f"\\boxed{{{other}}}", gold)]
    assert len(hits) <= 2, hits
