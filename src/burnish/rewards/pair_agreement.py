"""Agreement of preference pairs with a reward: how often it scores the better response higher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from burnish.algorithms.statistics import wilson_interval
from burnish.data.preference_tokens import PreferenceExample
from burnish.errors import DataError
from burnish.rewards.gold import as_if_sampled
from burnish.rewards.protocol import RewardScorer
from burnish.types import Prompt, Rollout, Tokenizer

BATCH_ROWS = 256


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """The two responses of a comparison after a reward has scored them. row: id of its row in the data."""

    row: str
    better: Rollout
    worse: Rollout

    @property
    def lead(self) -> float | None:
        """Score of the better response minus the score of the worse one; None if one of them could not be scored."""
        if self.better.reward is None or self.worse.reward is None:
            return None
        return self.better.reward - self.worse.reward


@dataclass(frozen=True, slots=True)
class PairAgreement:
    """Pairs of a data set as a reward scores them."""

    pairs: tuple[ScoredPair, ...]

    def lines(self) -> Iterator[str]:
        """Sentences for the command line."""
        leads = [lead for pair in self.pairs if (lead := pair.lead) is not None]
        count = len(leads)
        if leads:
            higher, equal = sum(lead > 0 for lead in leads) / count, sum(lead == 0 for lead in leads) / count
            low, high = wilson_interval(higher, count)
            share = f"{higher:.1%} of {count:,} pairs (95 %: {low:.1%} to {high:.1%})"
            yield f"the better response scores higher in {share}"
            yield f"both score the same in {equal:.1%}, the worse response scores higher in {1 - higher - equal:.1%}"
        if count < len(self.pairs):
            first = next(pair for pair in self.pairs if pair.lead is None)
            failed = first.better if first.better.reward is None else first.worse
            why = failed.status_detail or failed.status
            yield f"pairs that could not be scored: {len(self.pairs) - count:,} (the first: {first.row}: {why})"

    def disagreements(self) -> list[ScoredPair]:
        """Pairs whose worse response scores higher, the largest difference first."""
        found = [(lead, pair) for pair in self.pairs if (lead := pair.lead) is not None and lead < 0]
        return [pair for _, pair in sorted(found, key=lambda one: one[0])]


def pair_agreement(
    examples: Sequence[PreferenceExample], prompts: Mapping[str, Prompt], tokenizer: Tokenizer, scorer: RewardScorer
) -> PairAgreement:
    """Score all responses of comparisons. The responses to one prompt are a group, as judges that compare need it.

    prompts: by id of the row, with the columns that rewards read. Give the scorer a `max_failure_fraction` of 1.
    Raises DataError without any comparison: rated responses and ties have no better one.
    """
    compared = [example for example in examples if example.good is None and not example.tie]
    if not compared:
        raise DataError("there is no pair to score", remedy="give rows with a chosen and a rejected response")
    pairs: list[ScoredPair] = []
    for start in range(0, len(compared), BATCH_ROWS):
        batch = compared[start : start + BATCH_ROWS]
        groups = [_rollouts(example, group, tokenizer) for group, example in enumerate(batch, start)]
        scored = iter(scorer.score([(prompts[one.prompt_id], one) for group in groups for one in group]))
        for example in batch:
            responses = list(islice(scored, len(example.responses_tokens)))
            better = responses.pop(example.best)
            pairs += [ScoredPair(example.id, better, worse) for worse in responses]
    return PairAgreement(tuple(pairs))


def _rollouts(example: PreferenceExample, group: int, tokenizer: Tokenizer) -> list[Rollout]:
    """Responses of a comparison as if a policy had sampled them."""
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in example.responses_tokens]
    return [
        as_if_sampled(example.id, group, number, example.prompt_tokens, tokens, text)
        for number, (tokens, text) in enumerate(zip(example.responses_tokens, texts, strict=True))
    ]
