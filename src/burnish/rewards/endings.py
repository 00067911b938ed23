"""Where a response ends for its score, and what a response without such an end is worth.

2019 style (https://arxiv.org/abs/1909.08593): responses have a fixed length, are scored up to the first full stop at or
after position 16, and get -1 in place of their score where there is none. 2020 style, the "EOS trick"
(https://arxiv.org/abs/2403.17031): a response that has not ended by itself gets -1. (There all responses are sampled to
the full length and cut at their first end-of-sequence token. Sampling that stops at that token gives the same
responses, and the same ones token for token here, since the noise of a token depends on its position only.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from burnish.errors import ConfigError
from burnish.types import FinishReason, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from burnish.config.schema import ScoringConfig


@dataclass(frozen=True, slots=True)
class Ending:
    """The rules of one run. `token_id` None: a response ends where sampling ended it."""

    tokenizer: PreTrainedTokenizerBase
    token_id: int | None
    first_position: int
    incomplete_score: float | None

    @staticmethod
    def of(scoring: ScoringConfig, tokenizer: PreTrainedTokenizerBase) -> Ending | None:
        """None when responses are scored as they are. ConfigError for a truncate_token that is not one token."""
        if scoring.truncate_token is None and scoring.incomplete_score is None:
            return None
        token_id = None if scoring.truncate_token is None else single_token_id(scoring.truncate_token, tokenizer)
        return Ending(tokenizer, token_id, scoring.truncate_after, scoring.incomplete_score)

    def is_complete(self, rollout: Rollout) -> bool:
        """Whether the response has an end."""
        if self.token_id is None:
            return rollout.finish_reason is FinishReason.STOP
        return end_of(rollout.response_tokens, self.token_id, self.first_position) is not None

    def seen(self, rollout: Rollout) -> Rollout:
        """The rollout as rewards see it: cut behind its end. One that needs no cut is handed on as it is."""
        if self.token_id is None:
            return rollout
        end = end_of(rollout.response_tokens, self.token_id, self.first_position)
        if end is None or end == len(rollout.response_tokens):
            return rollout
        tokens = rollout.response_tokens[:end]
        return dataclasses.replace(
            rollout,
            response_tokens=tokens,
            rollout_logprobs=rollout.rollout_logprobs[:end],
            response=str(self.tokenizer.decode(list(tokens))),
            finish_reason=FinishReason.STOP,
        )

    def judged(self, rollout: Rollout, seen: Rollout) -> Rollout:
        """The whole rollout with what the rewards said about `seen`; an incomplete one gets `incomplete_score`.

        The score is replaced and not added to, and parts stay as the rewards gave them. A reward that failed stays
        failed. Token rewards are 0 behind the cut.
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
        detail = f"incomplete: scoring.incomplete_score {self.incomplete_score:g} stands in for {seen.reward:g}"
        return dataclasses.replace(whole, reward=self.incomplete_score, token_rewards=None, status_detail=detail)


def end_of(response_tokens: Sequence[int], token_id: int, first_position: int) -> int | None:
    """Length of the response up to and with the first `token_id` at or after `first_position` (from 0), or None."""
    for position in range(first_position, len(response_tokens)):
        if response_tokens[position] == token_id:
            return position + 1
    return None


def single_token_id(text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of a token given as the vocabulary spells it, or as a text that is one token.

    The spelling comes first: decoders like SentencePiece put a space before every text, so that `.` by itself would be
    two tokens, while the full stop after a word is the token spelt `.`. Raises ConfigError when neither is the case.
    """
    found = tokenizer.get_vocab().get(text)
    if found is not None:
        return int(found)
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id:
        return int(tokens[0])
    raise ConfigError(
        f"scoring.truncate_token is {text!r}, which is not one token of the tokenizer but "
        f"{tokenizer.convert_ids_to_tokens(tokens)}",
        remedy="name one token, as the vocabulary spells it (tokenizer.json), or remove it",
    )
