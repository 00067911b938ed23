"""Mathematical equality of the final answer and the gold answer. math-verify decides what plain numbers cannot.

math-verify's own time limits are turned off: they use `signal.alarm`, which only works in the main thread, and the
worker has a time limit anyway.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Annotated, Any

from burnish.rewards.builtins import extraction
from burnish.rewards.builtins.numbers import plain, read_number, same
from burnish.rewards.builtins.reading_rows import check_word

_PLACES: dict[str, tuple[Callable[[str], str | None], ...]] = {
    "any": (extraction.boxed, extraction.hashed, extraction.phrased, extraction.whole, extraction.last),
    "boxed": (extraction.boxed,),
    "hash": (extraction.hashed,),
    "phrase": (extraction.phrased,),
}


class MathAnswer:
    """1 if the final answer of the response equals the gold answer, else 0; None (missing) without a gold answer.

    A gold answer may be a number, text, LaTeX, a worked solution with `#### 72` or `\\boxed{}`, or a list of these, any
    of which counts.
    """

    def __init__(
        self,
        require: Annotated[
            str, "where the answer must be: any (default), boxed, hash (####), phrase (answer is ...)"
        ] = "any",
    ) -> None:
        check_word("math", "require", require, tuple(_PLACES))
        import math_verify

        # It warns that its time limits are off, and about expressions that it cannot parse.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)
        self._library = math_verify
        self._formulas = [math_verify.LatexExtractionConfig()]
        self._places = _PLACES[require]

    def __call__(self, response: str, answer: Any) -> float | None:
        golds = [gold for gold in map(gold_text, answer if isinstance(answer, (list, tuple)) else [answer]) if gold]
        if not golds:
            return None
        candidate = self.extract(response)
        if candidate is None:
            return 0.0
        return float(any(self.equal(gold, candidate) for gold in golds))

    def extract(self, response: str) -> str | None:
        """The final answer of a response, or None if it has none in the allowed places."""
        for place in self._places:
            found = place(response)
            if found is not None:
                return found
        return None

    def equal(self, gold: str, candidate: str) -> bool:
        """Whether two answers are the same number, the same normalised text, or mathematically equal."""
        if "=" not in gold:
            candidate = right_side(candidate)
        gold_number, number = read_number(gold), read_number(candidate)
        if gold_number is not None and number is not None:
            return same(gold_number, number)
        if canonical(gold) == canonical(candidate) != "":
            return True
        return bool(self._library.verify(self._parse(gold), self._parse(candidate), timeout_seconds=None))

    def _parse(self, text: str) -> list[Any]:
        """The answer parsed as one formula. Numbers inside a text that cannot be parsed do not count."""
        return self._library.parse(f"${plain(text)}$", self._formulas, parsing_timeout=None)


def gold_text(answer: Any) -> str | None:
    """The final answer of a gold entry: after `####`, inside `\\boxed{}`, or the entry itself; None if it is empty."""
    if answer is None or isinstance(answer, bool):
        return None if answer is None else str(answer)
    text = str(answer).strip()
    return (extraction.hashed(text) or extraction.boxed(text) or text) or None


def canonical(text: str) -> str:
    """The same spelling for LaTeX that only looks different: spacing, \\left, \\dfrac, \\text, final full stop."""
    text = plain(text).replace("\\left", "").replace("\\right", "").replace("\\$", "").replace("\\%", "")
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    return re.sub(r"\s+", "", text).rstrip(".").lower()


def right_side(formula: str) -> str:
    """The part after the last equals sign of a chain such as `2 + 3 = 5`. Relations and lists stay whole."""
    if re.search(r"[,;<>!]|\\(?:le|ge|ne|lt|gt|in|neq|leq|geq)\b", formula):
        return formula
    return formula.rpartition("=")[2].strip(" $") or formula
