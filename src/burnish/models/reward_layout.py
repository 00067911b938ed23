"""Lays out prompts and responses as rows for a reward model, with the column at which each is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from burnish.errors import ModelError

ScoreAt = Literal["last", "eos", "last_position"]
PromptResponse = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of one response to it."""


@dataclass(frozen=True, slots=True)
class Readout:
    """Where a response is scored.

    `last`: at its last token. `eos`: at its first end-of-sequence token, or at its last token if it has none.
    `last_position`: at the last of `response_length` positions. A shorter response is followed by padding that no
    token attends to (as in 2019, https://arxiv.org/abs/1909.08593).
    """

    score_at: ScoreAt = "last"
    response_length: int | None = None

    def offset(self, response: Sequence[int], eos_token_ids: Sequence[int]) -> int:
        """Position that is scored, counted from the first token of the response."""
        if self.score_at == "last_position":
            return self._fixed(response) - 1
        if self.score_at == "eos":
            ends = (i for i, token in enumerate(response) if token in eos_token_ids)
            return next(ends, len(response) - 1)
        return len(response) - 1

    def width(self, response: Sequence[int]) -> int:
        """Positions that the response takes up."""
        return self._fixed(response) if self.score_at == "last_position" else len(response)

    def _fixed(self, response: Sequence[int]) -> int:
        length = self.response_length or 0
        if len(response) > length:
            raise ModelError(
                f"a response has {len(response)} tokens, but the reward model scores at position {length}",
                remedy="raise response_length, or use score_at: last",
            )
        return length


@dataclass(frozen=True, slots=True)
class RewardLayout:
    """Right-padded rows (B, S) for the model, and the column at which each is scored, (B,).

    The mask depends on lengths only, so the padding id may be any token, even end of sequence.
    """

    tokens_BS: Tensor
    attention_mask_BS: Tensor
    read_B: Tensor


def lay_out_pairs(
    pairs: Sequence[PromptResponse], readout: Readout, *, pad_token_id: int, eos_token_ids: Sequence[int]
) -> RewardLayout:
    """Rows `prompt|response|padding`. Raises ValueError for an empty response."""
    if any(not response for _, response in pairs):
        raise ValueError("an empty response has no token to be scored at")
    widths = [len(prompt) + readout.width(response) for prompt, response in pairs]
    lengths_B = torch.tensor([len(prompt) + len(response) for prompt, response in pairs])
    rows = [
        [*prompt, *response, *([pad_token_id] * (max(widths) - len(prompt) - len(response)))]
        for prompt, response in pairs
    ]
    mask_BS = torch.arange(max(widths)) < lengths_B[:, None]
    read = [len(prompt) + readout.offset(response, eos_token_ids) for prompt, response in pairs]
    return RewardLayout(
        tokens_BS=torch.tensor(rows, dtype=torch.int64),
        attention_mask_BS=mask_BS.to(torch.int64),
        read_B=torch.tensor(read, dtype=torch.int64),
    )
