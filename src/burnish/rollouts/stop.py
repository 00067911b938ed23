"""The end of a response, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, Tokenizer


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
