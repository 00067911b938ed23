"""The text of each token, for those who look at responses token by token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def text_of_tokens(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], str]:
    """From a token's id to its text inside of a text. A part of a character gives the tokenizer's own sign for that.

    By itself many tokenizers (SentencePiece) decode a token without the space that it begins with, so that it is
    decoded behind itself.
    """

    @cache
    def text(token: int) -> str:
        alone, twice = str(tokenizer.decode([token])), str(tokenizer.decode([token, token]))
        return twice[len(alone) :] if twice.startswith(alone) else alone

    return text
