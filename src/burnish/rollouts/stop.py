"""The end of a response in every engine: its limit, what stops it, its text; and checks of its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from burnish.errors import RolloutError
from burnish.forward.boundaries import Boundaries
from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, RolloutRequest, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class StopConditions:
    """Stop ids, stop texts, and the tokenizer that turns tokens into text.

    token_ids: the sampling's stop ids, and the model's end-of-sequence ids unless the sampling ignores them.
    """

    token_ids: frozenset[int]
    texts: tuple[str, ...]
    tokenizer: Tokenizer = field(repr=False)

    @staticmethod
    def of(sampling: Sampling, eos_token_ids: Sequence[int], tokenizer: Tokenizer) -> StopConditions:
        own = frozenset[int]() if sampling.ignore_eos else frozenset(eos_token_ids)
        return StopConditions(own | frozenset(sampling.stop_token_ids), sampling.stop, tokenizer)

    def finish_reason(self, response_tokens: Sequence[int], limit: int) -> FinishReason | None:
        """Why the response ends with its last token, or None if it continues. A stop wins over the length limit."""
        if response_tokens[-1] in self.token_ids or (self.texts and self._completes_text(response_tokens)):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(response_tokens) >= limit else None

    def response_text(self, response_tokens: Sequence[int]) -> str:
        """The response without the token that ended it. Stop texts and special tokens stay in it.

        A reward must see everything that was sampled. Otherwise a policy that samples padding or the start of a turn in
        the middle of its answer would look as if it had not.
        """
        tokens = list(response_tokens)
        if tokens and tokens[-1] in self.token_ids:
            tokens.pop()
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False))

    def _completes_text(self, response_tokens: Sequence[int]) -> bool:
        """Look at the last tokens only, and decode the whole response just to confirm a match.

        A character takes at most four byte tokens, so the window holds every character of the longest stop text. The
        window may start anywhere, and decoders treat a beginning specially (SentencePiece drops its space), so a match
        is checked. Special tokens are kept, because a stop text may be one.
        """
        window = 4 * max(len(text) for text in self.texts) + 8
        if not self._contains_text(response_tokens[-window:]):
            return False
        return len(response_tokens) <= window or self._contains_text(response_tokens)

    def _contains_text(self, tokens: Sequence[int]) -> bool:
        text = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return any(stop in text for stop in self.texts)


def response_limit(request: RolloutRequest, sampling: Sampling, context_length: int) -> int:
    """Longest response to this prompt, in tokens. RolloutError if the prompt is empty or leaves too little room."""
    length = len(request.prompt_tokens)
    if length == 0:
        raise RolloutError(
            f"prompt {request.name!r} has no tokens", remedy="give it text, or a beginning-of-sequence token"
        )
    if length >= context_length:
        raise RolloutError(
            f"prompt {request.name!r} has {length} tokens, which leaves no room for a response in the model's "
            f"context of {context_length}",
            remedy="lower rollout.max_prompt_tokens, or use a model with a longer context",
        )
    room = context_length - length
    if sampling.ignore_eos and room < sampling.max_response_tokens:
        raise RolloutError(
            f"prompt {request.name!r} has {length} tokens, which leaves room for {room} more in the model's "
            f"context of {context_length}, but with ignore_eos responses have exactly "
            f"{sampling.max_response_tokens}",
            remedy="lower rollout.max_prompt_tokens or rollout.max_response_tokens",
        )
    return min(sampling.max_response_tokens, room)


def check_logprob(logprob: float, position: int, request: RolloutRequest, sample_index: int) -> None:
    """Raise RolloutError for a log-probability that is not finite, at this position of a response."""
    if not math.isfinite(logprob):
        raise RolloutError(
            f"the model gives log-probability {logprob} at response token {position} of prompt {request.name!r}, "
            f"sample {sample_index}",
            remedy="weights or activations are not finite: lower the learning rate or use a wider dtype",
        )


def check_rotation(config: PreTrainedConfig, reach: int) -> None:
    """Raise RolloutError if sequences of up to `reach` tokens can cross the length beyond which the model rotates all
    positions by other angles. Tokens sampled before that point would get other log-probabilities in training."""
    boundaries = Boundaries.of(config)
    limit = boundaries.rotation if boundaries.stretch is None else boundaries.stretch
    if limit is not None and reach > limit:
        raise RolloutError(
            f"this run's sequences have up to {reach} tokens, but this {config.model_type} model rotates all positions "
            f"by different angles once a sequence is longer than {limit} tokens (its rope_parameters), so the "
            "log-probabilities of tokens sampled before that would differ from those in training",
            remedy=f"keep rollout.max_prompt_tokens + rollout.max_response_tokens at or below {limit}",
        )
