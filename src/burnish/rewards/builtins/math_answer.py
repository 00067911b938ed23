"""Mathematical equality of the final answer with the gold answer, decided by math-verify where plain numbers do not.

math-verify's own time limits are off: they use `signal.alarm`, which fails off the main thread, and the worker's
limit does the job.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from burnish.errors import ConfigError
from burnish.rewards.builtins import extraction
from burnish.rewards.builtins.numbers import plain, read_number, same
from burnish.words import nearest

_PLACES: dict[str, tuple[Callable[[str], str | None], ...]] = {
    "any": (extraction.boxed, extraction.hashed, extraction.phrased, extraction.whole, extraction.last),
    "boxed": (extraction.boxed,),
    "hash": (extraction.hashed,),
    "phrase": (extraction.phrased,),
}


class MathAnswer:
    """1 when the final answer of the response equals the gold answer, else 0; None (missing) without a gold answer.

    Gold answers may be numbers, text, LaTeX, worked solutions that end in `#### 72` or hold `\\boxed{}`, or a list of
    which any counts.
    """

    def __init__(self, require: str = "any") -> None:
        if require not in _PLACES:
            near = nearest(require, _PLACES)
            hint = f"did you mean {near!r}? " if near else ""
            raise ConfigError(
                f"option require of reward 'math' is {require!r}", remedy=f"{hint}use {', '.join(_PLACES)}"
            )
        import math_verify

        # It warns once that its time limits are off, and about expressions that it cannot read.
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
        """The final answer of a response, or None when there is none in the places that count."""
        for place in self._places:
            found = place(response)
            if found is not None:
                return found
        return None

    def equal(self, gold: str, candidate: str) -> bool:
        """Whether two answers are the same number, the same text after normalisation, or the same mathematics."""
        if "=" not in gold:
            candidate = right_side(candidate)
        gold_number, number = read_number(gold), read_number(candidate)
        if gold_number is not None and number is not None:
            return same(gold_number, number)
        if canonical(gold) == canonical(candidate) != "":
            return True
        return bool(self._library.verify(self._parse(gold), self._parse(candidate), timeout_seconds=None))

    def _parse(self, text: str) -> list[Any]:
        """The answer as one formula; never a number fished out of something that cannot be read."""
        return self._library.parse(f"${plain(text)}$", self._formulas, parsing_timeout=None)


def gold_text(answer: Any) -> str | None:
    """The final answer of a gold entry: after `####`, inside `\\boxed{}`, or the entry itself; None for nothing."""
    if answer is None or isinstance(answer, bool):
        return None if answer is None else str(answer)
    text = str(answer).strip()
    return (extraction.hashed(text) or extraction.boxed(text) or text) or None


def canonical(text: str) -> str:
    """One spelling for LaTeX that differs only in looks: spacing, \\left, \\dfrac, \\text, final full stop."""
    text = plain(text).replace("\\left", "").replace("\\right", "").replace("\\$", "").replace("\\%", "")
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    return re.sub(r"\s+", "", text).rstrip(".").lower()


def right_side(formula: str) -> str:
    """What stands after the last equals sign of a chain such as `2 + 3 = 5`; relations and lists stay whole."""
    if re.search(r"[,;<>!]|\\(?:le|ge|ne|lt|gt|in|neq|leq|geq)\b", formula):
        return formula
    return formula.rpartition("=")[2].strip(" $") or formula
