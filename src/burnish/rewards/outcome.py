"""What one reward says about one response, once checked: plain values that travel between processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from burnish.errors import RewardError
from burnish.types import RewardStatus, Score


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status of one (reward, response) pair, with its score when the status is OK and the reason otherwise."""

    status: RewardStatus
    score: Score | None = None
    detail: str = ""


def failure(status: RewardStatus, detail: str) -> Outcome:
    """An outcome without a score."""
    return Outcome(status, None, detail)


def read_result(result: Any, label: str) -> Outcome:
    """Checks what a reward returned for one response.

    None is MISSING, a number that is not finite is ERROR, any other type than float, int, bool or Score raises
    RewardError: the function itself is wrong then, not this response.
    """
    if result is None:
        return failure(RewardStatus.MISSING, f"reward {label!r} returned None: it cannot judge this response")
    score = result if isinstance(result, Score) else Score(_number(result, label))
    return _finite(_plain_score(score, label), label)


def read_batch(results: Any, count: int, label: str) -> list[Outcome]:
    """Checks what a batched reward returned for `count` responses; another length raises RewardError."""
    if isinstance(results, (str, bytes, Mapping)) or not isinstance(results, Iterable):
        raise RewardError(
            f"batched reward {label!r} returned {type(results).__name__} for {count} responses",
            remedy="return a list with one score per response",
        )
    results = list(results)
    if len(results) != count:
        raise RewardError(
            f"batched reward {label!r} returned {len(results)} scores for {count} responses",
            remedy="return exactly one score per response, in their order (None where it cannot judge)",
        )
    return [read_result(result, label) for result in results]


def _number(value: Any, label: str) -> float:
    if not isinstance(value, Real):
        raise RewardError(
            f"reward {label!r} returned {type(value).__name__} ({str(value)[:80]!r})",
            remedy="return a float, int, bool, burnish.types.Score, or None for a response that cannot be judged",
        )
    return float(value)


def _plain_score(score: Score, label: str) -> Score:
    tokens = score.token_rewards
    return Score(
        value=_number(score.value, label),
        parts={str(name): _number(value, label) for name, value in score.parts.items()},
        token_rewards=None if tokens is None else tuple(_number(value, label) for value in tokens),
    )


def _finite(score: Score, label: str) -> Outcome:
    named = [("the score", score.value), *((f"part {name!r}", value) for name, value in score.parts.items())]
    named += [(f"token_rewards[{index}]", value) for index, value in enumerate(score.token_rewards or ())]
    for name, value in named:
        if not math.isfinite(value):
            return failure(RewardStatus.ERROR, f"reward {label!r} returned {value} as {name}")
    return Outcome(RewardStatus.OK, score)
