"""Metrics of a reward model on held-out comparisons, and of a judge that only counts tokens. Plain numbers in and
out."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.algorithms.statistics import wilson_interval

GAP_EDGES = (0.0, 0.25, 0.5, 1.0, 2.0, math.inf)
CALIBRATION_BINS = 10
MAX_LABELLED_MARGINS = 10
HISTOGRAM_BINS = 30


@dataclass(frozen=True, slots=True)
class ScoredComparison:
    """Scores and lengths (tokens) of the candidates, index of the best one, margin of the label; never a tie."""

    scores: tuple[float, ...]
    lengths: tuple[int, ...]
    best: int
    margin: float | None = None

    @property
    def gap(self) -> float:
        """Lead of the candidate that the model prefers over the next one."""
        first, second = sorted(self.scores, reverse=True)[:2]
        return first - second

    @property
    def lead(self) -> float:
        """Lead of the best candidate over the best of the others."""
        others = (score for number, score in enumerate(self.scores) if number != self.best)
        return self.scores[self.best] - max(others)

    @property
    def hit(self) -> float:
        """1 if the model prefers the best candidate, 1/n if n candidates, this one included, share the top score, else
        0."""
        return share_of_first(self.scores, self.best)

    @property
    def confidence(self) -> float:
        """Probability of the candidate that the model prefers: the largest softmax of the scores."""
        top = max(self.scores)
        return 1.0 / math.fsum(math.exp(score - top) for score in self.scores)

    @property
    def loss(self) -> float:
        """-log of the probability of the best candidate, in nats."""
        top = max(self.scores)
        return math.log(math.fsum(math.exp(score - top) for score in self.scores)) + top - self.scores[self.best]


def share_of_first(values: Sequence[float], index: int) -> float:
    """1 if only `index` has the largest value, 1/n if it shares it with n - 1 others, else 0."""
    top = max(values)
    return 1.0 / sum(value == top for value in values) if values[index] == top else 0.0


def accuracy(comparisons: Sequence[ScoredComparison]) -> float:
    """Fraction of comparisons in which the best candidate scores highest."""
    return math.fsum(comparison.hit for comparison in comparisons) / len(comparisons)


def calibration_error(comparisons: Sequence[ScoredComparison], bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: mean distance between confidence and accuracy over bins of equal width in confidence,
    weighted by their number of comparisons (https://arxiv.org/abs/1706.04599)."""
    binned: dict[int, list[ScoredComparison]] = defaultdict(list)
    for comparison in comparisons:
        binned[min(int(comparison.confidence * bins), bins - 1)].append(comparison)
    total = math.fsum(
        abs(math.fsum(c.hit for c in members) - math.fsum(c.confidence for c in members)) for members in binned.values()
    )
    return total / len(comparisons)


def length_correlation(comparisons: Sequence[ScoredComparison]) -> float | None:
    """Pearson correlation of score and length, each minus its mean in the comparison, so that only differences between
    answers to one prompt count. None if either never differs."""
    scores = _centred(c.scores for c in comparisons)
    lengths = _centred(c.lengths for c in comparisons)
    spread = math.sqrt(float(scores @ scores) * float(lengths @ lengths))
    return float(scores @ lengths) / spread if spread > 0 else None


def _centred(rows: Iterable[Sequence[float]]) -> np.ndarray:
    return np.concatenate([np.asarray(row, dtype=float) - np.mean(row) for row in rows])


@dataclass(frozen=True, slots=True)
class LengthRule:
    """The rule that the longest (or the shortest) response is the best: a judge that only counts tokens."""

    prefers_longer: bool

    @staticmethod
    def learned(lengths: Sequence[tuple[Sequence[int], int]]) -> LengthRule:
        """The better of the two rules on training comparisons, each (lengths, best)."""
        longer = math.fsum(share_of_first(row, best) for row, best in lengths)
        shorter = math.fsum(share_of_first([-length for length in row], best) for row, best in lengths)
        return LengthRule(longer >= shorter)

    def accuracy(self, comparisons: Sequence[ScoredComparison]) -> float:
        """Fraction of comparisons that the rule gets right."""
        sign = 1 if self.prefers_longer else -1
        hits = (share_of_first([sign * length for length in c.lengths], c.best) for c in comparisons)
        return math.fsum(hits) / len(comparisons)


def gap_buckets(comparisons: Sequence[ScoredComparison]) -> dict[str, float]:
    """Accuracy by the lead that the model gives (`0.25-0.5`, `2+`); empty buckets are left out."""
    found = {}
    for low, high in itertools.pairwise(GAP_EDGES):
        members = [c for c in comparisons if low <= c.gap < high]
        if members:
            found[f"{low:g}+" if math.isinf(high) else f"{low:g}-{high:g}"] = accuracy(members)
    return found


def margin_buckets(comparisons: Sequence[ScoredComparison]) -> dict[str, float]:
    """Accuracy by the margin of the label; empty if there are more than ten different margins."""
    by_margin: dict[float, list[ScoredComparison]] = defaultdict(list)
    for comparison in comparisons:
        if comparison.margin is not None:
            by_margin[comparison.margin].append(comparison)
    if len(by_margin) > MAX_LABELLED_MARGINS:
        return {}
    return {f"{margin:g}": accuracy(members) for margin, members in sorted(by_margin.items())}


def describe(comparisons: Sequence[ScoredComparison], rule: LengthRule | None) -> dict[str, float]:
    """Compute the metrics of an evaluation, named `eval/...`; without a rule its accuracy is left out."""
    share = accuracy(comparisons)
    low, high = wilson_interval(share, len(comparisons))
    scores = np.array([score for c in comparisons for score in c.scores])
    row = {
        "eval/comparisons": float(len(comparisons)),
        "eval/loss": math.fsum(c.loss for c in comparisons) / len(comparisons),
        "eval/accuracy": share,
        "eval/accuracy_low": low,
        "eval/accuracy_high": high,
        "eval/calibration_error": calibration_error(comparisons),
        "eval/score_mean": float(scores.mean()),
        "eval/score_std": float(scores.std()),
        "eval/score_gap": math.fsum(c.lead for c in comparisons) / len(comparisons),
    }
    if rule is not None:
        row["eval/length_rule_accuracy"] = rule.accuracy(comparisons)
    correlation = length_correlation(comparisons)
    if correlation is not None:
        row["eval/length_correlation"] = correlation
    row |= {f"eval/accuracy_by_gap/{name}": value for name, value in gap_buckets(comparisons).items()}
    row |= {f"eval/accuracy_by_margin/{name}": value for name, value in margin_buckets(comparisons).items()}
    return row


def histogram(comparisons: Sequence[ScoredComparison], bins: int = HISTOGRAM_BINS) -> dict[str, Any]:
    """Count the scores between `edges`, separately for the best candidates and the others."""
    best = [c.scores[c.best] for c in comparisons]
    others = [score for c in comparisons for number, score in enumerate(c.scores) if number != c.best]
    edges = np.histogram_bin_edges([*best, *others], bins=bins)
    return {
        "edges": edges.tolist(),
        "best": np.histogram(best, edges)[0].tolist(),
        "others": np.histogram(others, edges)[0].tolist(),
    }
