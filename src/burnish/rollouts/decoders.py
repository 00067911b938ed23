"""One decoding step of all rows: who computes the logits after each row's newest token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from burnish.rollouts.cache import PrefilledPrompts, RowCache


class Decoder(Protocol):
    """Holds keys and values of the rows being decoded (R of them, numbered from 0)."""

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Rows enter behind those that are there. Row i has a prompt of `prompt_lengths[i]` tokens; all of them but the
        last are cached in prompt `sources[i]` (`prompts` is None for prompts of one token)."""
        ...

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """(R, vocabulary) after each row's newest token, which stands at this position of its text."""
        ...

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Rows `sources` take the places of rows `targets`; only the first `num_rows` stay."""
        ...


MakeDecoder = Callable[[Any, int], Decoder]
"""Takes the model and a number of places."""


class ModelDecoder:
    """Decoder on any `transformers` causal language model that keeps keys and values."""

    def __init__(self, model: Any, places: int, attention: str) -> None:
        self._model = model
        self._attention = attention
        self._dtype = next(model.parameters()).dtype
        self._cache = RowCache(places)

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        self._cache.append(len(prompt_lengths), prompts, sources)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        width = int(positions_R.max()) + 1
        self._cache.begin(positions_R, width)
        outputs = self._model(
            input_ids=tokens_R[:, None],
            position_ids=positions_R[:, None],
            attention_mask=self._mask(positions_R, width),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_RV: Tensor = outputs.logits[:, -1]
        return logits_RV

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        self._cache.move(sources, targets, num_rows)

    def _mask(self, positions_R: Tensor, width: int) -> Tensor:
        """(rows, 1, 1, width): each row sees its own columns, up to and with the one being written."""
        visible = torch.arange(width, device=positions_R.device) <= positions_R[:, None]
        visible = visible[:, None, None, :]
        if self._attention == "sdpa":
            return visible
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, lowest)
