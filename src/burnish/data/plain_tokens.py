"""Text from outside, encoded so that nothing in it is a control token, and found again in what a template writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from burnish.data.chat import encode_bare
from burnish.data.rows import describe
from burnish.errors import DataError
from burnish.types import Message, Tokenizer

_BEGIN, _END = "burnish7begin", "burnish7end"


class PlainEncoder:
    """Encodes text without control tokens: `<|im_end|>` becomes the tokens of its characters.

    Tokens added to a tokenizer's vocabulary have a meaning for the model that text from outside must not be able to
    express, even if they are not special (`<tool_call>`). A fast tokenizer is used without them. Text that still
    becomes a control token (as with a tokenizer of single characters, one of which ends a turn) is left out.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = frozenset([*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()])
        self._control -= {tokenizer.unk_token_id}
        self._backend = _without_added_tokens(tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of the text, none of them a control token. Raises DataError for a character that the tokenizer does
        not know, if it has no unknown token."""
        if not text:
            return ()
        tokens: Sequence[int] = (
            encode_bare(text, self._tokenizer) if self._backend is None else self._encode_backend(text)
        )
        return tuple(token for token in tokens if token not in self._control)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> tuple[int, ...]:
        """Tokens of a text in pieces, as `pieces` gives them: a piece between marks is from outside."""
        encoded = (self.encode(text) if is_plain else encode_bare(text, self._tokenizer) for text, is_plain in pieces)
        return tuple(token for tokens in encoded for token in tokens)

    def control_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Keep only the control tokens."""
        return [token for token in tokens if token in self._control]

    def _encode_backend(self, text: str) -> Sequence[int]:
        try:
            ids: Sequence[int] = self._backend.encode(text, add_special_tokens=False).ids
        # Boundary to the tokenizer's own code, which raises bare Exceptions for characters that it does not know.
        except Exception as error:
            raise DataError(
                f"the tokenizer cannot encode {describe(text)}: {error}",
                remedy="use a tokenizer that knows these characters, or that has an unknown token",
            ) from error
        return ids


def _without_added_tokens(tokenizer: Tokenizer) -> Any:
    """The tokenizer's own backend without its added tokens; None for a tokenizer in Python, which splits at them."""
    if not tokenizer.is_fast:
        return None
    import tokenizers

    written = json.loads(tokenizer.backend_tokenizer.to_str())
    written["added_tokens"] = []
    written["post_processor"] = None  # it may name tokens that are gone
    return tokenizers.Tokenizer.from_str(json.dumps(written))


def marks(messages: Sequence[Message]) -> tuple[str, str]:
    """Two words that occur in no content, to mark where contents begin and end."""
    begin, end = _BEGIN, _END
    while any(begin in message.content or end in message.content for message in messages):
        begin, end = begin + "7", end + "7"
    return begin, end


def pieces(text: str, begin: str, end: str) -> Iterator[tuple[str, bool]]:
    """Split a text at its marks; True for a part that stood between two of them."""
    while text:
        before, _, rest = text.partition(begin)
        content, _, text = rest.partition(end)
        yield before, False
        yield content, True
