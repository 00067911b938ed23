"""The checked result of one reward for one response: plain values that can be sent between processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Set, Sized
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeGuard

from burnish.errors import RewardError
from burnish.types import RewardStatus, Score

MAX_DETAIL = 20_000
"""Maximum number of characters of a failed response's `detail`."""
MAX_PARTS = 256
MAX_PART_NAME = 120
PARTS_REMEDY = "return parts as a dictionary from names to numbers"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status of one (reward, response) pair, with its score if the status is OK, and the reason otherwise."""

    status: RewardStatus
    score: Score | None = None
    detail: str = ""


def failure(status: RewardStatus, detail: str) -> Outcome:
    """An outcome without a score. A very long reason keeps its beginning and its end."""
    if len(detail) > MAX_DETAIL:
        half = MAX_DETAIL // 2
        detail = f"{detail[:half]}\n... {len(detail) - MAX_DETAIL:,} characters left out ...\n{detail[-half:]}"
    return Outcome(status, None, detail)


def read_result(result: Any, label: str) -> Outcome:
    """Check what a reward returned for one response.

    None is MISSING, and a number that is not finite is ERROR. Any type other than float, int, bool or Score raises
    RewardError, because then the function is wrong, not this response. Reading the result can run the user's code
    (`__float__`, properties of a subclass), whose exceptions pass through.
    """
    if result is None:
        return failure(RewardStatus.MISSING, f"reward {label!r} returned None: it cannot judge this response")
    score = result if isinstance(result, Score) else Score(_number(result, label, "returned"))
    return _checked(_plain_score(score, label), label)


def read_batch(results: Any, count: int, label: str) -> list[Outcome]:
    """Check what a batched reward returned for `count` responses. A wrong length raises RewardError."""
    if not _in_order(results):
        raise RewardError(
            f"batched reward {label!r} returned {type(results).__name__} for {count} responses",
            remedy="return a list with one score per response",
        )
    found = list(itertools.islice(results, count + 1))  # one more than expected, because a generator may never end
    if len(found) != count:
        raise RewardError(
            f"batched reward {label!r} returned {_length(results, found, count)} scores for {count} responses",
            remedy="return exactly one score per response, in their order (None where the row is not for it)",
        )
    return [read_result(result, label) for result in found]


def _in_order(values: Any) -> TypeGuard[Iterable[Any]]:
    """Return whether these are values in an order, such as a list or a generator."""
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping, Set))


def _length(results: Iterable[Any], found: list[Any], count: int) -> str:
    if isinstance(results, Sized):
        return str(len(results))
    return f"more than {count}" if len(found) > count else str(len(found))


_ARRAYS = {("numpy", "bool"), ("numpy", "bool_"), ("numpy", "ndarray"), ("torch", "Tensor")}
"""Module and name of types whose values without dimensions are numbers. Workers do not import these modules."""


def _number(value: Any, label: str, what: str) -> float:
    if (type(value).__module__, type(value).__name__) in _ARRAYS and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real):
        raise RewardError(
            f"reward {label!r} {what} {type(value).__name__}{_quoted(value)}",
            remedy="return a float, int, bool, burnish.types.Score, or None where the row is not for this reward",
        )
    try:
        return float(value)
    except OverflowError:  # an int or Fraction beyond the largest float
        return math.inf


def _quoted(value: Any) -> str:
    """Quote the value if it is text. Other objects are not shown, because their `__repr__` may be the user's code."""
    return f" ({value[:80]!r})" if type(value) is str else ""


def _plain_score(score: Score, label: str) -> Score:
    tokens = score.token_rewards
    return Score(
        value=_number(score.value, label, "returned a Score whose value is"),
        parts=_plain_parts(score.parts, label),
        token_rewards=None
        if tokens is None
        else tuple(_number(value, label, "returned among its token_rewards") for value in _entries(tokens, label)),
    )


def _plain_parts(parts: Any, label: str) -> dict[str, float]:
    """Convert names to exactly str and numbers to float."""
    if not isinstance(parts, Mapping):
        raise RewardError(
            f"reward {label!r} returned a Score whose parts are {type(parts).__name__}", remedy=PARTS_REMEDY
        )
    plain: dict[str, float] = {}
    for name, value in itertools.islice(parts.items(), MAX_PARTS + 1):
        if not isinstance(name, str):
            raise RewardError(
                f"reward {label!r} returned a part whose name is {type(name).__name__}{_quoted(name)}",
                remedy=PARTS_REMEDY,
            )
        plain[str.__str__(name)] = _number(value, label, f"returned as part {str.__str__(name)[:80]!r}")
    return plain


def _parts_problem(parts: Mapping[str, float]) -> str:
    """Say why these parts cannot be logged (each name becomes part of every line of metrics); empty if they can."""
    if len(parts) > MAX_PARTS:
        return f"more than {MAX_PARTS} parts"
    for name in parts:
        if not (0 < len(name) <= MAX_PART_NAME and name.isprintable()):
            shown = f"a part named {name[:40]!r} ({len(name):,} characters)"
            return f"{shown}, where a name has 1 to {MAX_PART_NAME} printable ones"
    return ""


def _entries(tokens: Any, label: str) -> Iterable[Any]:
    if not _in_order(tokens) or not isinstance(tokens, Sized):
        raise RewardError(
            f"reward {label!r} returned token_rewards of type {type(tokens).__name__}",
            remedy="return a tuple with one number per entry of response_tokens",
        )
    return tokens


def _checked(score: Score, label: str) -> Outcome:
    problem = _parts_problem(score.parts)
    if problem:
        return failure(RewardStatus.ERROR, f"reward {label!r} returned {problem}")
    named = [("the score", score.value), *((f"part {name!r}", value) for name, value in score.parts.items())]
    named += [(f"token_rewards[{index}]", value) for index, value in enumerate(score.token_rewards or ())]
    for name, value in named:
        if not math.isfinite(value):
            shown = "nan" if math.isnan(value) else f"{value} (infinite, or too large for a float)"
            return failure(RewardStatus.ERROR, f"reward {label!r} returned {shown} as {name}")
    return Outcome(RewardStatus.OK, score)
