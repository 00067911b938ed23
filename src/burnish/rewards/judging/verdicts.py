"""Verdicts: the required end of a judge's answer, read exactly or not at all.

A verdict counts only at the very end of the answer, so that a quotation before it cannot be taken for one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

AnswerFormat = Literal["json", "tag", "last_line"]
Better = Literal["A", "B", "tie"]
BETTER: Mapping[str, Better] = {"a": "A", "b": "B", "tie": "tie"}
KEYS = ("score", "scores", "better")
"""Names in verdicts, which are also removed from responses."""
END_CHARACTERS = 1 << 16
"""Number of characters read from the end of an answer. No verdict is longer."""
_MOST_BRACES = 200
"""Number of braces, from the end, at which the JSON of a verdict may begin."""
_SHOWN = 80

T = TypeVar("T")


class UnreadableVerdictError(ValueError):
    """An answer that does not end in the requested form. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Scores a judge may give: numbers from `low` to `high`, mapped to 0 and 1, or words with a number each."""

    low: float = 0.0
    high: float = 1.0
    labels: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def of(given: object) -> Scale:
        """Make a scale from `[low, high]` or `{WORD: number}`. ValueError says what is wrong."""
        if isinstance(given, Mapping):
            labels = tuple((str(word).strip(), _finite(value)) for word, value in given.items())
            if len({word.casefold() for word, _ in labels if word}) < max(2, len(given)):
                raise ValueError("labels must be two or more different words")
            if not all(0 <= value <= 1 for _, value in labels):
                raise ValueError("the numbers of labels must be between 0 and 1")
            if len({value for _, value in labels}) == 1:
                raise ValueError("all labels have the same number")
            return Scale(labels=labels)
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != 2:
            raise ValueError("it must be two numbers, or words with a number each")
        low, high = _finite(given[0]), _finite(given[1])
        if low >= high:
            raise ValueError("the first number must be the smaller one")
        return Scale(low, high)

    def read(self, value: object) -> float:
        """Map a judge's score to 0 to 1. UnreadableVerdictError if it is not on this scale."""
        if self.labels:
            found = {word.casefold(): number for word, number in self.labels}
            said = str(value).strip().casefold() if isinstance(value, (str, int, float)) else ""  # a word may be 5
            if said not in found:
                raise UnreadableVerdictError(f"{_shown(value)} is not {self.described()}")
            return found[said]
        if isinstance(value, str):
            raise UnreadableVerdictError(
                f"{_shown(value)} is text, not {self.described()}; write it without quotation marks"
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            raise UnreadableVerdictError(f"{_shown(value)} is not {self.described()}")
        return (value - self.low) / (self.high - self.low)

    def read_text(self, text: str) -> float:
        """Like `read`, for a score that is text instead of JSON."""
        if self.labels:
            return self.read(text)
        if not re.fullmatch(r"[-+]?\d+(\.\d+)?", text.strip()):
            raise UnreadableVerdictError(f"{_shown(text.strip())} is not a number")
        return self.read(float(text))

    def read_texts(self, text: str, count: int) -> tuple[float, ...]:
        """Like `read_text`, for this many scores between commas."""
        entries = text.split(",")
        if len(entries) != count:
            raise UnreadableVerdictError(f"it has {len(entries)} scores, not {count}")
        return tuple(map(self.read_text, entries))

    def described(self) -> str:
        """Describe the scale in words, such as `a number from 1 to 10`."""
        if self.labels:
            return "one of " + ", ".join(word for word, _ in self.labels)
        return f"a number from {self.low:g} to {self.high:g}"

    def example(self) -> str:
        """An example of a score in JSON."""
        if self.labels:
            return json.dumps(self.labels[0][0], ensure_ascii=False)
        middle = (self.low + self.high) / 2
        return f"{math.floor(middle) if math.floor(middle) >= self.low else middle:g}"


@dataclass(frozen=True, slots=True)
class AnswerForm(Generic[T]):
    """The wanted end of an answer: the instruction that asks for it, and its reader (UnreadableVerdictError)."""

    instruction: str
    read: Callable[[str], T]


def score_wanted(scale: Scale, style: AnswerFormat) -> AnswerForm[float]:
    """A verdict of one score."""
    example, what = scale.example(), f"score: {scale.described()}"
    return _wanted("score", style, what, example, example.strip('"'), scale.read, scale.read_text)


def named_scores_wanted(names: Sequence[str], scale: Scale, style: AnswerFormat) -> AnswerForm[tuple[float, ...]]:
    """A verdict with a score for each of these names, in their order."""

    def read(value: object) -> tuple[float, ...]:
        if not isinstance(value, dict) or set(value) != set(names):
            raise UnreadableVerdictError(f"it does not have exactly one score for each of {', '.join(names)}")
        return tuple(scale.read(value[name]) for name in names)

    in_json = json.dumps({name: json.loads(scale.example()) for name in names}, ensure_ascii=False)
    in_text = ", ".join([scale.example().strip('"')] * len(names))
    asked = f"score for each criterion ({', '.join(names)}), each {scale.described()}"
    return _wanted("scores", style, asked, in_json, in_text, read, partial(scale.read_texts, count=len(names)))


def listed_scores_wanted(count: int, scale: Scale, style: AnswerFormat) -> AnswerForm[tuple[float, ...]]:
    """A verdict with a list of `count` scores."""

    def read(value: object) -> tuple[float, ...]:
        if not isinstance(value, list) or len(value) != count:
            raise UnreadableVerdictError(f"it is not a list of {count} scores")
        return tuple(scale.read(entry) for entry in value)

    in_json, in_text = (", ".join([example] * count) for example in (scale.example(), scale.example().strip('"')))
    asked = f"score of each of the {count} steps in their order, each {scale.described()}"
    return _wanted("scores", style, asked, f"[{in_json}]", in_text, read, partial(scale.read_texts, count=count))


def better_wanted(style: AnswerFormat) -> AnswerForm[Better]:
    """A verdict that names the better of two responses, or `tie`."""

    def read(value: object) -> Better:
        if not isinstance(value, str) or value.strip().casefold() not in BETTER:
            raise UnreadableVerdictError(f"{_shown(value)} is not A, B or tie")
        return BETTER[value.strip().casefold()]

    return _wanted("better", style, "choice: A, B or tie", '"A"', "A", read, read)


def _wanted(
    key: str,
    style: AnswerFormat,
    what: str,
    in_json: str,
    in_text: str,
    of_json: Callable[[object], T],
    of_text: Callable[[str], T],
) -> AnswerForm[T]:
    """A verdict in this style. in_json, in_text: examples of its value. of_json, of_text: read the value."""
    example = {"json": f'{{"{key}": {in_json}}}', "tag": f"<{key}>{in_text}</{key}>", "last_line": in_text}[style]
    instruction = (
        "You may reason first, briefly. The last thing that you write has to be your verdict, in exactly this form and"
        f" with nothing after it:\n{example}\nIt holds your {what}."
    )

    def read(reply: str) -> T:
        reply = reply[-END_CHARACTERS:]
        if style == "json":
            return of_json(_last_object(reply, key))
        return of_text(_last_tag(reply, key) if style == "tag" else _last_line(reply))

    return AnswerForm(instruction, read)


def _last_object(reply: str, key: str) -> object:
    """Read the value of `key` from the JSON object at the end of the answer."""
    text = reply.rstrip().removesuffix("```").rstrip()  # the end of a block of code
    if not text.endswith("}"):
        raise UnreadableVerdictError("it does not end with a JSON object")
    start = len(text)
    for _ in range(_MOST_BRACES):
        if (start := text.rfind("{", 0, start)) < 0:
            break
        try:
            found = json.loads(text[start:], object_pairs_hook=_without_doubles)
        except UnreadableVerdictError:
            raise
        except (ValueError, RecursionError):  # also ValueError for a number of thousands of digits
            continue
        if key not in found or not re.search(rf'"{key}"\s*:', text[start:]):  # an escaped key may be a quotation
            raise UnreadableVerdictError(f"the JSON object at its end has no {key!r}")
        return found[key]
    raise UnreadableVerdictError("what it ends with is not JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableVerdictError("it gives a name twice")
    return found


def _shown(value: object) -> str:
    """Show a value in a message. Lists and objects only by kind: they may be nested too deeply to be written."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return repr(str(value)[:_SHOWN])


def _last_tag(reply: str, key: str) -> str:
    match = re.search(rf"<{key}>([^<>]*)</{key}>\s*\Z", reply)
    if match is None:
        raise UnreadableVerdictError(f"it does not end with <{key}>...</{key}>")
    return match[1]


def _last_line(reply: str) -> str:
    lines = reply.strip().splitlines()
    if not lines:
        raise UnreadableVerdictError("it is empty")
    return lines[-1].strip()


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
