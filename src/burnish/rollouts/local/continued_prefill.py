"""Reading on: the new tokens of kept rows go through the model, several rows at a time.

A row's new tokens are read in one pass, over the kept keys and values of its earlier ones. Each token is written to the
column of its position, as in decoding, so the same masks hide columns that a row does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.forward.row_rules import quiet_outputs
from burnish.rollouts.local.cache import Columns, Masks, PrefilledPrompts, RowCache, as_argument
from burnish.rollouts.local.prefill import PrefilledRows, attention_kind, in_passes, tokens_per_forward
from burnish.rollouts.local.reusable_rows import Held, KeptRow, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PADDING = 0
"""Token for padding; any would do, because nothing sees it."""
_CACHED_PER_NEW = 8
"""A pass may copy this many times as many cached tokens as it may read new ones."""


class RowReader:
    """Computation of keys and values of the tokens after a kept row, except the last, which is the first input of
    decoding."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._masks = Masks(model, attention_kind(model.config))

    def read_on(self, kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> Iterator[PrefilledRows]:
        """Yield the rows with their new tokens read. Each text begins with the kept tokens and has at least one more.
        Results refer to memory that all rows of a pass share: copy them to keep them."""
        new = [len(text) - 1 - len(row.text) for row, text in zip(kept, texts, strict=True)]
        alike: dict[tuple[bool, bool], list[int]] = {}  # decoders take rows with and without a prompt separately
        for i, row in enumerate(kept):
            alike.setdefault((row.shared is None, new[i] == 0), []).append(i)
        for rows in alike.values():
            rows.sort(key=lambda i: new[i], reverse=True)
            for chunk in in_passes(rows, partial(self._fits, [len(text) for text in texts], new)):
                yield self._read(chunk, [kept[i] for i in chunk], [texts[i] for i in chunk])

    def _fits(self, lengths: Sequence[int], new: Sequence[int], rows: list[int]) -> bool:
        """Return whether these rows fit in a pass. The one with the most new tokens comes first."""
        budget, cached = tokens_per_forward(self._device), len(rows) * max(lengths[i] for i in rows)
        return len(rows) * new[rows[0]] <= budget and cached <= budget * _CACHED_PER_NEW

    def _read(self, rows: list[int], kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> PrefilledRows:
        shared, own = [as_columns(row.shared) for row in kept], [as_columns(row.own) for row in kept]
        distinct = {id(columns): columns for columns in shared if columns is not None}
        number = {key: i for i, key in enumerate(distinct)}
        prompts = PrefilledPrompts.of(list(distinct.values())) if distinct else None
        read = PrefilledRows(rows, prompts, [number.get(id(c), 0) for c in shared], [c for c in own if c is not None])
        lengths = [len(row.text) for row in kept]
        if len(texts[0]) - 1 == lengths[0]:  # nothing is new to any of them
            return read
        cache = self._forward(read, lengths, texts)
        starts = [0 if columns is None else columns.width for columns in shared]
        more = [cache.columns(i, starts[i], len(text) - 1) for i, text in enumerate(texts)]
        return replace(read, own=more)

    def _forward(self, begun: PrefilledRows, lengths: Sequence[int], texts: Sequence[Tokens]) -> RowCache:
        """One pass over the tokens after the first `lengths`, right-padded. Padding is written to the columns after a
        row's last one."""
        new = [text[length:-1] for length, text in zip(lengths, texts, strict=True)]
        most = max(len(tokens) for tokens in new)
        padded = [[*tokens, *[_PADDING] * (most - len(tokens))] for tokens in new]
        starts_R1 = self._numbers(lengths)[:, None]
        last_R1 = self._numbers([len(text) - 2 for text in texts])[:, None]
        positions_RT = starts_R1 + torch.arange(most, device=self._device)
        width = max(lengths) + most
        cache = RowCache(len(texts), columns=width)
        cache.append([length + 1 for length in lengths], begun.prompts, begun.sources, begun.own)
        cache.begin(positions_RT, width)
        self._model(
            input_ids=torch.tensor(padded, device=self._device),
            # Padding takes the last token's position: a learned embedding may have none beyond it.
            position_ids=torch.minimum(positions_RT, last_R1),
            attention_mask=self._masks(positions_RT, width),
            use_cache=True,
            logits_to_keep=1,  # none are needed, but 0 would mean all
            **as_argument(cache, self._model),
            **quiet_outputs(self._model),
        )
        return cache

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def as_columns(held: Held | None) -> Columns | None:
    """Narrow the type of a cache that a copying decoder has kept. None if nothing is shared."""
    assert held is None or isinstance(held, Columns)
    return held
