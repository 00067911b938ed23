"""From verdicts to the score of one response: a score, a rubric, or a score for each step."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from burnish.errors import ConfigError
from burnish.rewards.inputs import Item, Signature
from burnish.rewards.judging.asking import Asker
from burnish.rewards.judging.client import NoVerdictError
from burnish.rewards.judging.options import Criterion, JudgeOptions, criteria_of
from burnish.rewards.judging.prompts import PromptWriter, clean
from burnish.rewards.judging.verdicts import AnswerForm, Scale, listed_scores_wanted, named_scores_wanted, score_wanted
from burnish.types import RewardStatus, Score, Tokenizer

T = TypeVar("T")


@dataclass(slots=True)
class Judge:
    """One reward `judge` of a run: its prompts, its scale, and how it reads answers."""

    label: str
    options: JudgeOptions
    writer: PromptWriter
    scale: Scale
    criteria: tuple[Criterion, ...]
    signature: Signature
    special_tokens: frozenset[str] = frozenset()
    """Tokens of the judge's tokenizer, if it is known, and of the policy's, to be removed from responses."""
    tokenizer: Tokenizer | None = field(default=None, repr=False)

    @staticmethod
    def of(label: str, options: JudgeOptions) -> Judge:
        """Make a judge from its options. ConfigError for a template that does not suit the form."""
        writer = PromptWriter.of(options.form, options.read_template(), options.system, reference=options.reference)
        needed = list(writer.values_read())
        if isinstance(options.criteria, str):
            needed.append(options.criteria)
        tokens = ("response_tokens",) if options.form == "steps" else ()
        signature = Signature(label, tuple(dict.fromkeys(["response", *needed, *tokens])))
        return Judge(label, options, writer, options.read_scale(), options.read_criteria(), signature)

    def attach_policy(self, tokenizer: Tokenizer) -> None:
        """Remove the policy's special tokens from responses, too, and place the scores of steps on its tokens."""
        self.tokenizer = tokenizer
        self.special_tokens |= {str(token) for token in tokenizer.all_special_tokens}

    def values(self, item: Item) -> dict[str, Any]:
        """Values of a row that the prompts show. NoVerdictError (missing) if it has none for a placeholder."""
        arguments = self.signature.arguments(item)
        shown = {name: arguments[name] for name in self.writer.values_read()}
        for name, value in shown.items():
            if value is None:
                raise NoVerdictError(f"the row has no {name}, which the judge's prompt shows", RewardStatus.MISSING)
        return shown

    def cleaned(self, text: str) -> str:
        return clean(text, self.special_tokens)

    async def score(self, item: Item, asker: Asker) -> Score:
        """Score one response, in any form but `pairwise`. NoVerdictError if there is no verdict."""
        match self.options.form:
            case "rubric":
                return await self._rubric(item, asker)
            case "steps":
                return await self._steps(item, asker)
            case _:
                return Score(await self._ask(item, asker, score_wanted(self.scale, self.options.answer_format)))

    async def _ask(self, item: Item, asker: Asker, wanted: AnswerForm[T], *parts: str) -> T:
        """Ask for the verdict on a whole response. parts: texts between the template and the final instruction."""
        judged = {"response": self.cleaned(item[1].response)}
        messages = self.writer.write(self.values(item), judged, [*parts, wanted.instruction])
        return await asker.verdict(messages, wanted)

    async def _rubric(self, item: Item, asker: Asker) -> Score:
        """The weighted mean of the criteria: the sum of weight times score over the sum of positive weights."""
        criteria = self.criteria or self._criteria_of_row(item)
        if self.options.one_call:
            listed = "\n".join(f"- {each.name}: {each.text}" for each in criteria)
            named = named_scores_wanted([each.name for each in criteria], self.scale, self.options.answer_format)
            together = await self._ask(item, asker, named, f"Criteria, to be judged one by one:\n{listed}")
            scores = list(together)
        else:
            wanted = score_wanted(self.scale, self.options.answer_format)
            texts = (f"Criterion, the only one that counts now:\n{each.text}" for each in criteria)
            scores = await asyncio.gather(*(self._ask(item, asker, wanted, text) for text in texts))
        total = sum(criterion.weight * score for criterion, score in zip(criteria, scores, strict=True))
        value = total / sum(criterion.weight for criterion in criteria if criterion.weight > 0)
        # Rows with their own criteria have different ones, so means over rows would be meaningless.
        parts = {each.name: score for each, score in zip(criteria, scores, strict=True)} if self.criteria else {}
        return Score(value, parts)

    def _criteria_of_row(self, item: Item) -> tuple[Criterion, ...]:
        column = str(self.options.criteria)
        given = item[0].columns.get(column)
        if not given:
            raise NoVerdictError(f"the row has no criteria in the column {column!r}", RewardStatus.MISSING)
        try:
            return criteria_of(given)
        except ConfigError as error:
            raise NoVerdictError(f"the criteria in the column {column!r} cannot be used: {error.message}") from None

    async def _steps(self, item: Item, asker: Asker) -> Score:
        """The mean of the steps. Each puts its share on its last token, so more steps do not give a higher score."""
        response = item[1].response
        spans = split_steps(response, self.options.step_pattern, self.options.max_steps)
        wanted = listed_scores_wanted(len(spans), self.scale, self.options.answer_format)
        pieces = [self.cleaned(response[start:end]) for start, end in spans]
        judged: dict[str, str | Sequence[str]] = {"steps": pieces, "response": self.cleaned(response)}
        scores = await asker.verdict(self.writer.write(self.values(item), judged, [wanted.instruction]), wanted)
        value = sum(scores) / len(scores)
        if self.tokenizer is None:
            return Score(value)
        start = item[1].last_start  # of the turn whose text was judged
        tokens = item[1].response_tokens[start:]
        if not tokens:
            raise NoVerdictError("the response has no token on which a step's score could be placed")
        rewards = [0.0] * (start + len(tokens))
        for position, score in zip(last_tokens(tokens, [end for _, end in spans], self.tokenizer), scores, strict=True):
            rewards[start + position] += score / len(scores)
        return Score(sum(rewards), token_rewards=tuple(rewards))


def split_steps(response: str, pattern: str, most: int) -> list[tuple[int, int]]:
    """Find first character and end of each step: the parts between matches of the pattern that are not blank, else the
    whole response. With more than `most`, the last step is all the rest, so that no response can make a judge list
    thousands of scores."""
    spans, start = [], 0
    for match in re.finditer(pattern, response):
        spans.append((start, match.start()))
        start = match.end()
    spans.append((start, len(response)))
    steps = [(begin, end) for begin, end in spans if response[begin:end].strip()] or [(0, len(response))]
    return steps if len(steps) <= most else [*steps[: most - 1], (steps[most - 1][0], steps[-1][1])]


def last_tokens(tokens: Sequence[int], ends: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """For each end (in characters of the decoded tokens) the position of the token that completes it.

    The text of the first k tokens is decoded for the k that a binary search needs. A character cut in the middle
    decodes to U+FFFD, which does not count.
    """

    def length(count: int) -> int:
        return len(str(tokenizer.decode(list(tokens[:count]), skip_special_tokens=False)).rstrip("\ufffd"))

    counts = range(1, len(tokens) + 1)
    return [min(bisect_left(counts, end, key=length), len(tokens) - 1) for end in ends]
