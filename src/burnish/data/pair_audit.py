"""Faults of comparisons that no single row shows: repeats, contradictions, length as the only difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burnish.algorithms.statistics import wilson_interval
from burnish.data.preference_tokens import PreferenceExample

Tokens = tuple[int, ...]
LENGTH_BIAS = 0.6
"""From this share on, the longer (or the shorter) response is chosen so often that a model may learn that alone."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One comparison of two responses, with the row it is from."""

    row: str
    prompt: Tokens
    better: Tokens
    worse: Tokens


@dataclass(frozen=True, slots=True)
class PairAudit:
    """Findings, each as the rows it concerns. longer: share of pairs of unequal length whose better response is the
    longer one; unequal: number of such pairs."""

    pairs: int
    repeated: tuple[tuple[str, str], ...]
    contradicting: tuple[tuple[str, str], ...]
    prefixes: tuple[str, ...]
    longer: float
    unequal: int

    def lines(self, show: int) -> Iterator[str]:
        """Sentences for the command line, with at most `show` rows of each finding."""
        yield f"pairs: {self.pairs:,}"
        for found, what in (
            ([f"{first} and {second}" for first, second in self.repeated], "rows that repeat an earlier one"),
            ([f"{first} and {second}" for first, second in self.contradicting], "rows that contradict an earlier one"),
            (list(self.prefixes), "pairs of which one response only goes on where the other ends"),
        ):
            if found:
                rows = ", ".join(found[:show]) + (", ..." if len(found) > show else "")
                yield f"{what}: {len(found):,} ({rows})"
        if self.unequal:
            low, high = wilson_interval(self.longer, self.unequal)
            yield f"the longer response is the better one in {self.longer:.1%} (95 %: {low:.1%} to {high:.1%})"
            if low > LENGTH_BIAS or high < 1 - LENGTH_BIAS:
                yield (
                    "length alone tells the better response more often than not: compare eval/accuracy with "
                    "eval/length_rule_accuracy, or use length_normalised or losses: simpo"
                )


def audit(examples: Sequence[PreferenceExample]) -> PairAudit:
    """Look for faults in comparisons; rated responses contradict each other if the same one is good and bad."""
    pairs = list(_pairs(examples))
    first: dict[tuple[Tokens, Tokens, Tokens], str] = {}
    repeated, contradicting, longer = [], [], []
    for pair in pairs:
        earlier = first.setdefault((pair.prompt, pair.better, pair.worse), pair.row)
        if earlier != pair.row:
            repeated.append((earlier, pair.row))
        opposite = first.get((pair.prompt, pair.worse, pair.better))
        if opposite is not None:
            contradicting.append((opposite, pair.row))
        if len(pair.better) != len(pair.worse):
            longer.append(len(pair.better) > len(pair.worse))
    return PairAudit(
        pairs=len(pairs),
        repeated=tuple(repeated),
        contradicting=(*contradicting, *_rated_twice(examples)),
        prefixes=tuple(pair.row for pair in pairs if _is_prefix(pair.better, pair.worse)),
        longer=sum(longer) / len(longer) if longer else 0.0,
        unequal=len(longer),
    )


def _pairs(examples: Sequence[PreferenceExample]) -> Iterator[Pair]:
    for example in examples:
        if example.good is not None or example.tie:
            continue
        better = example.responses_tokens[example.best]
        for number, response in enumerate(example.responses_tokens):
            if number != example.best:
                yield Pair(example.id, example.prompt_tokens, better, response)


def _rated_twice(examples: Sequence[PreferenceExample]) -> Iterator[tuple[str, str]]:
    """Rows that rate the same response to the same prompt differently."""
    ratings: dict[tuple[Tokens, Tokens], dict[bool, str]] = defaultdict(dict)
    for example in (one for one in examples if one.good is not None):
        assert example.good is not None
        seen = ratings[example.prompt_tokens, example.responses_tokens[0]]
        if (not example.good) in seen:
            yield seen[not example.good], example.id
        seen.setdefault(example.good, example.id)


def _is_prefix(first: Tokens, second: Tokens) -> bool:
    """Return whether one is the other's beginning, apart from its last token, which may be an end of sequence."""
    short, long = sorted((first, second), key=len)
    return long[: len(short) - 1] == short[:-1] and (short == long[: len(short)] or short[-1] == long[-1])
