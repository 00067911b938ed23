"""The end of a response for scoring, and the score of a response that has no end.

2019 style (https://arxiv.org/abs/1909.08593): responses have a fixed length and are scored up to the first full stop at
or after position 16. Without one, the score is replaced by -1. 2020 style, the "EOS trick"
(https://arxiv.org/abs/2403.17031): a response that has not ended by itself gets -1. (There, all responses are sampled
to full length and cut at the first EOS token. Sampling that stops at EOS gives the same responses, here even token by
token, because the sampling noise of a token depends only on its position.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.errors import ConfigError
from burnish.outside.reading import reading
from burnish.types import FinishReason, Message, Rollout, Tokenizer, Turn

if TYPE_CHECKING:
    from burnish.config.schema import ScoringConfig


@dataclass(frozen=True, slots=True)
class Ending:
    """The rules of one run. If `token_id` is None, a response ends where sampling ended it."""

    tokenizer: Tokenizer
    token_id: int | None
    first_position: int
    incomplete_score: float | None

    @staticmethod
    def of(scoring: ScoringConfig, tokenizer: Tokenizer) -> Ending | None:
        """Make the rules; None if responses are scored unchanged. ConfigError if truncate_token is not one token."""
        if scoring.truncate_token is None and scoring.incomplete_score is None:
            return None
        token_id = None if scoring.truncate_token is None else single_token_id(scoring.truncate_token, tokenizer)
        return Ending(tokenizer, token_id, scoring.truncate_after, scoring.incomplete_score)

    def is_complete(self, rollout: Rollout) -> bool:
        """Return whether the response has an end under these rules."""
        if self.token_id is None:
            return rollout.finish_reason is FinishReason.STOP
        return self._end(rollout) is not None

    def seen(self, rollout: Rollout) -> Rollout:
        """Cut the rollout after its end, as rewards are to see it. Returns the same object if nothing is cut."""
        end = self._end(rollout)
        if end is None or end == len(rollout.response_tokens):
            return rollout
        response = str(self.tokenizer.decode(list(rollout.response_tokens[rollout.last_start : end])))
        return dataclasses.replace(
            rollout,
            response_tokens=rollout.response_tokens[:end],
            rollout_logprobs=rollout.rollout_logprobs[:end],
            response=response,
            finish_reason=FinishReason.STOP,
            turns=_cut_turns(rollout.turns, end, response),
        )

    def _end(self, rollout: Rollout) -> int | None:
        """Number of tokens up to the end of the response, or None without one. Only the last turn is searched."""
        if self.token_id is None:
            return None
        start = rollout.last_start
        end = end_of(rollout.response_tokens[start:], self.token_id, self.first_position)
        return None if end is None else start + end

    def judged(self, rollout: Rollout, seen: Rollout) -> Rollout:
        """Put the scores of `seen` on the whole rollout. An incomplete one gets `incomplete_score` instead.

        The score is replaced, not added to, while the parts stay as the rewards gave them. A failed reward stays
        failed. Token rewards are 0 after the cut.
        """
        dense, missing = seen.token_rewards, len(rollout.response_tokens) - len(seen.response_tokens)
        whole = dataclasses.replace(
            rollout,
            reward=seen.reward,
            reward_parts=seen.reward_parts,
            token_rewards=None if dense is None else (*dense, *(0.0,) * missing),
            status=seen.status,
            status_detail=seen.status_detail,
        )
        if self.incomplete_score is None or seen.reward is None or self.is_complete(rollout):
            return whole
        detail = f"incomplete: scoring.incomplete_score {self.incomplete_score:g} replaces {seen.reward:g}"
        return dataclasses.replace(whole, reward=self.incomplete_score, token_rewards=None, status_detail=detail)


def _cut_turns(turns: tuple[Turn, ...], end: int, response: str) -> tuple[Turn, ...]:
    """Cut the last turn. It keeps only its text as a message, because its calls may have been in the part cut off."""
    if not turns:
        return ()
    return (*turns[:-1], dataclasses.replace(turns[-1], stop=end, messages=(Message("assistant", response),)))


def end_of(response_tokens: Sequence[int], token_id: int, first_position: int) -> int | None:
    """Length of the response including the first `token_id` at or after `first_position` (counted from 0), or None."""
    positions = range(first_position, len(response_tokens))
    return next((position + 1 for position in positions if response_tokens[position] == token_id), None)


def single_token_id(text: str, tokenizer: Tokenizer) -> int:
    """The id of a token, given as its entry in the vocabulary or as a text that is encoded as one token.

    The vocabulary is tried first. Tokenizers like SentencePiece put a space before every text, so a lone `.` would
    become two tokens, although the full stop after a word is the entry `.`. Raises ConfigError if neither applies.
    """
    found = tokenizer.get_vocab().get(text)
    if found is not None:
        return int(found)
    with reading(f"scoring.truncate_token {text!r}", ConfigError, remedy="name a token that the tokenizer has"):
        tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
        return int(tokens[0])
    parts = tokenizer.convert_ids_to_tokens(tokens)
    message = f"scoring.truncate_token is {text!r}, which is not one token of the tokenizer but {parts}"
    raise ConfigError(message, remedy="name one token, as the vocabulary spells it (tokenizer.json), or remove it")
