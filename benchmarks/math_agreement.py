"""How often the reward `math` and others agree with what is right.

    BURNISH_DATA=FOLDER python benchmarks/math_agreement.py        # prints the table of docs/rewards.md

Sets: the worked solutions of GSM8K as responses; the gold answers of MATH-500 in other spellings, which deserve 1; and
answers that are not theirs, which deserve 0. The others are math-verify by itself (`pip install math-verify`), the rule
that TRL documents for its accuracy reward (math-verify reads LaTeX only, boxes first; a row whose gold answer it cannot
read is skipped, which counts as disagreeing), and the rule that verl documents for MATH: the last box, compared as text
after LaTeX's spacing, units and fractions have been put in one form.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from burnish.rewards.builtins.math_answer import MathAnswer

Judge = Callable[[str, str], bool | None]  # None: the row is skipped
Row = tuple[str, str]  # response, gold answer


def main() -> None:
    folder = Path(os.environ["BURNISH_DATA"])
    sets = dict(rows_by_set(folder))
    print("| set | deserves | rows |", " | ".join(JUDGES), "|")
    print("|---|---|---:|" + "---:|" * len(JUDGES))
    for (name, right), rows in sets.items():
        counts = [sum(judge(response, gold) is bool(right) for response, gold in rows) for judge in JUDGES.values()]
        print(f"| {name} | {right} | {len(rows):,} |", " | ".join(f"{count / len(rows):.1%}" for count in counts), "|")


def rows_by_set(folder: Path) -> Iterator[tuple[tuple[str, int], list[Row]]]:
    solved = [
        json.loads(line)["answer"] for line in lines_of(folder / "gsm8k/train.jsonl", folder / "gsm8k/test.jsonl")
    ]
    yield ("GSM8K, worked solutions", 1), [(solution, solution) for solution in solved]
    boxed = [re.sub(r"#### (.*)$", r"The answer is $\\boxed{\1}$.", solution) for solution in solved]
    yield ("GSM8K, in a box", 1), list(zip(boxed, solved, strict=True))
    golds = [json.loads(line)["answer"] for line in lines_of(folder / "math_eval/math500_test.jsonl")]
    yield ("MATH-500, as they stand", 1), [(f"So it is $\\boxed{{{gold}}}$.", gold) for gold in golds]
    spelt = [(f"So it is $\\boxed{{{other}}}$.", gold) for gold in golds for other in spellings(gold)]
    yield ("MATH-500, other spellings", 1), spelt
    draw = random.Random(0)
    wrong = [(f"So it is $\\boxed{{{other}}}$.", gold) for gold in golds for other in wrong_answers(gold, draw)]
    yield ("MATH-500, wrong answers", 0), wrong


def lines_of(*files: Path) -> Iterator[str]:
    for file in files:
        yield from file.read_text(encoding="utf-8").splitlines()


def spellings(gold: str) -> Iterator[str]:
    """Other ways to write the same."""
    changes = (
        (r"\\frac(?=[{\d\s])", r"\\dfrac"),
        (r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"),
        (r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", r"\\begin{bmatrix}\1\\end{bmatrix}"),
        (r"\^\\circ", r"\\text{ degrees}"),
        (r"\\\$", ""),
        (r"\\text\{(\w+)\}", r"\1"),
        (r"\\left|\\right", ""),
        (r"^(-?\d+)$", r"\1.0"),
        (r"^(-?\d+)$", r"x = \1"),
        (r"^(-?\d+)$", r"\1\\text{ units}"),
        (r"^(-?\d+)$", r"\\textbf{\1}"),
        (r"^(\d+)(\d{3})$", r"\1,\2"),
        (r"^-", "−"),
        (r" ", r"\\,"),
        (r"\\sqrt\{(\d)\}", r"\\sqrt\1"),
        (r"^\((.*)\)$", r"\\left( \1 \\right)"),
        (r"\\cup", r"\\,\\cup\\,"),
    )
    for pattern, other in changes:
        changed = re.sub(pattern, other, gold, count=1, flags=re.DOTALL)
        if changed != gold and not (pattern == " " and "\\!" in gold):  # in a number, that is no space
            yield changed


def wrong_answers(gold: str, draw: random.Random) -> Iterator[str]:
    """Answers that are near, and not the same."""
    numbers = list(re.finditer(r"\d+", gold))
    if numbers:
        found = draw.choice(numbers)
        yield f"{gold[: found.start()]}{int(found[0]) + 1}{gold[found.end() :]}"
    if re.fullmatch(r"-?\d+", gold):
        if gold != "0":
            yield f"{gold}x"
        yield f"{gold}, {int(gold) + 1}"
    if gold.startswith("-") and "," not in gold:
        yield gold[1:]
    swapped = re.sub(r"^(\\left)?\((.*?),(.*)(\\right)?\)$", r"(\3,\2)", gold)
    if swapped != gold and "infty" not in gold and "cup" not in gold:
        yield swapped
    if "pmatrix" in gold and "&" not in gold:
        yield gold.replace("\\\\", "&")
    if "i" in gold and re.fullmatch(r"[-+ \di]+", gold):
        yield gold.replace("+", "~").replace(" - ", " + ").replace("~", "-")


def by_verl(response: str, gold: str) -> bool:
    box = re.findall(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", response)
    wanted = gold.rpartition("####")[2].strip() if "####" in gold else gold
    return bool(box) and one_form(box[-1]) == one_form(wanted)


def one_form(text: str) -> str:
    text = re.sub(r"\\!|\\left|\\right|\^\{?\\circ\}?|\\\$|\\%|\\ |\s", "", re.sub(r"\\text\{ .*", "", text))
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text))
    text = re.sub(r"^(-?\d+)/(\d+)$", r"\\frac{\1}{\2}", text)
    text = text.rpartition("=")[2] if len(text.partition("=")[0]) <= 2 else text
    return "0.5" if text == "\\frac{1}{2}" else re.sub(r"^\.", "0.", text)


def judges() -> dict[str, Judge]:
    reward = MathAnswer()
    found: dict[str, Judge] = {"Burnish": lambda response, gold: reward(response, gold) == 1.0}
    try:
        import math_verify
    except ImportError:
        pass
    else:
        logging.disable(logging.ERROR)

        from latex2sympy2_extended import NormalizationConfig

        normal = NormalizationConfig(
            nits=False, malformed_operators=False, basic_latex=True, equations=True, boxed="all", units=True
        )
        boxes_first = math_verify.LatexExtractionConfig(
            normalization_config=normal, boxed_match_priority=0, try_extract_without_anchor=False
        )

        def by_math_verify(response: str, gold: str) -> bool:
            said = math_verify.parse(response, parsing_timeout=None)
            return bool(math_verify.verify(wanted_by_math_verify(gold), said, timeout_seconds=None))

        def by_trl(response: str, gold: str) -> bool | None:
            wanted = wanted_by_math_verify(gold)
            if not wanted:
                return None
            said = math_verify.parse(response, [boxes_first], extraction_mode="first_match", parsing_timeout=None)
            return bool(math_verify.verify(wanted, said, timeout_seconds=None))

        def wanted_by_math_verify(gold: str) -> list[object]:
            wanted = gold.rpartition("####")[2].strip() if "####" in gold else gold
            parsed: list[object] = math_verify.parse(f"${wanted}$", parsing_timeout=None)
            return parsed

        found |= {"math-verify": by_math_verify, "TRL's rule": by_trl}
    found["verl's rule"] = by_verl
    return found


JUDGES = judges()

if __name__ == "__main__":
    main()
