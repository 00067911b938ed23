"""Agreement of a judge with humans who rated the same responses, measured before anything is trained on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from burnish.algorithms.statistics import wilson_interval
from burnish.errors import DataError, RewardError
from burnish.rewards.gold import as_rollout
from burnish.rewards.judging.options import JudgeOptions, label_value
from burnish.rewards.protocol import RewardScorer
from burnish.types import Prompt

NORMAL_95 = 1.959964
HALF = 0.5
LEAST_FOR_INTERVAL = 4
Pair = tuple[float, float]
"""Scores of the judge and of the human."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """`accuracy` where humans gave two different scores (the judge's are cut at one half), else Spearman's `rank
    correlation`; None if it is not defined. low, high: its interval of 95 %. failed: rows without a verdict."""

    kind: Literal["accuracy", "rank correlation"]
    rows: int
    failed: int
    value: float | None
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows that humans have judged"
        if self.failed:
            rows += f" ({self.failed:,} more have no verdict)"
        if self.value is None:
            return f"agreement is undefined on {rows}: the judge's scores, or the human ones, are all equal"
        interval = "" if math.isnan(self.low) else f" (95 %: {self.low:.3f} to {self.high:.3f})"
        return f"{self.kind} {self.value:.3f}{interval} on {rows}"


def measure_agreement(prompts: Sequence[Prompt], scorer: RewardScorer, options: JudgeOptions) -> Agreement:
    """Let the judge score the responses of all rows with a label and a `response`.

    `scorer` has only this judge, and lets any fraction of the responses fail. DataError for a label that the judge's
    scale does not have, and if no row has both. RewardError if no verdict is given.
    """
    column, scale = str(options.labels), options.read_scale()
    labels, items = [], []
    for prompt in prompts:
        label, response = prompt.columns.get(column), prompt.columns.get("response")
        if label in (None, "") or not isinstance(response, str) or not response:
            continue
        try:
            labels.append(label_value(scale, label))
        except ValueError as error:
            raise DataError(
                f"the column {column!r} of row {prompt.id} cannot be compared with the judge: {error}",
                remedy=f"write {scale.described()}, or another number",
            ) from None
        items.append((prompt, as_rollout(prompt, response, None)))
    if not items:
        raise DataError(
            f"no row has both a response and a human's score in the column {column!r}",
            remedy="add the columns response and the one that the judge's option labels names, or remove the option",
        )
    scored = scorer.score(items)
    pairs = [(one.reward, label) for one, label in zip(scored, labels, strict=True) if one.reward is not None]
    if not pairs:
        why = (
            f"none of {len(scored):,} rows that humans have judged has a verdict; the first: {scored[0].status_detail}"
        )
        raise RewardError(why, remedy="see that the judge answers, then check again")
    return agreement(pairs, failed=len(scored) - len(pairs))


def agreement(pairs: Sequence[Pair], *, failed: int = 0) -> Agreement:
    """Compute the agreement of these pairs of scores."""
    values = sorted({human for _, human in pairs})
    if len(values) == 2:
        share = sum((score >= HALF) == (human == values[1]) for score, human in pairs) / len(pairs)
        return Agreement("accuracy", len(pairs), failed, share, *wilson_interval(share, len(pairs)))
    found = rank_correlation(pairs)
    interval = (math.nan, math.nan)
    if found is not None and len(pairs) >= LEAST_FOR_INTERVAL and abs(found) < 1:
        # Fisher's transformation, with the variance of Fieller, Hartley and Pearson for ranks
        # (Biometrika 44, 1957, https://doi.org/10.1093/biomet/44.3-4.470).
        reach = NORMAL_95 * math.sqrt(1.06 / (len(pairs) - 3))
        interval = (math.tanh(math.atanh(found) - reach), math.tanh(math.atanh(found) + reach))
    return Agreement("rank correlation", len(pairs), failed, found, *interval)


def rank_correlation(pairs: Sequence[Pair]) -> float | None:
    """Spearman's rank correlation, with the mean rank for ties. None if all values of one side are equal."""
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    try:
        return max(-1.0, min(1.0, statistics.correlation(first, second)))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value, from 0: the number of smaller values, plus half the number of other equal ones."""
    order = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(order)))}
    last = {value: index for index, value in enumerate(order)}
    return [(first[value] + last[value]) / 2 for value in values]
