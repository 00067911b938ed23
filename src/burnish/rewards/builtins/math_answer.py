"""Mathematical equality of the answer that a response states and the gold answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from burnish.rewards.builtins import extraction
from burnish.rewards.builtins.boxes import boxed
from burnish.rewards.builtins.equality import equal, same_words
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.stated_values import Statement

_PLACES: dict[str, tuple[Callable[[str], Statement | None], ...]] = {
    "any": (boxed, extraction.hashed, extraction.phrased, extraction.whole, extraction.last),
    "boxed": (boxed,),
    "hash": (extraction.hashed,),
    "phrase": (extraction.phrased,),
}
_STATED = {"any": "\\boxed{%s}", "boxed": "\\boxed{%s}", "hash": "#### %s", "phrase": "The answer is $%s$."}


class MathAnswer:
    """1 if the final answer of the response equals the gold answer, else 0; None (missing) without a gold answer.

    A gold answer may be a number, text, LaTeX, a worked solution with `#### 72` or `\\boxed{}`, or a list of these, any
    of which counts.
    """

    def __init__(
        self,
        require: Annotated[
            Literal["any", "boxed", "hash", "phrase"],
            "where the answer must be: any (default), boxed, hash (####), phrase (answer is ...)",
        ] = "any",
    ) -> None:
        self._places = _PLACES[require]
        self._stated = _STATED[require]

    def __call__(self, response: str, answer: Any) -> float | None:
        golds = [gold for gold in map(gold_text, answer if isinstance(answer, (list, tuple)) else [answer]) if gold]
        if not golds:
            return None
        candidate = self.extract(response)
        if candidate is not None and any(equal(gold, candidate) for gold in golds):
            return 1.0
        # A gold answer may be words with numbers, `May 5`, of which a sentence would tell only a part.
        told = extraction.said(response).rpartition("####")
        is_place = extraction.whole in self._places or (extraction.hashed in self._places and told[1])
        return float(bool(is_place) and any(same_words(gold, told[2]) for gold in golds))

    def state(self, gold: str) -> str:
        """The gold answer as a response would state it: as it stands if that is read, else in the place to read."""
        return gold if self(gold, gold) == 1.0 else self._stated % gold_text(gold)

    def extract(self, response: str) -> str | None:
        """The answer that a response states after its thoughts; None if it states no single one where it must."""
        text = extraction.said(response)
        for place in self._places:
            statement = place(text)
            if statement is not None:
                return statement.answer
        return None


def gold_text(answer: Any) -> str | None:
    """The final answer of a gold entry: after `####`, inside `\\boxed{}`, or the entry itself; None if it is empty."""
    if answer is None or isinstance(answer, bool):
        return None if answer is None else str(answer)
    if isinstance(answer, dict):
        raise NoScoreError("the gold answer is an object: name the column or the entry of it that holds the answer")
    text = str(answer).strip()
    statement = extraction.hashed(text) or boxed(text)
    return (statement.answer if statement is not None else text) or None
