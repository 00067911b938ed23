"""Prefill: each distinct prompt through the model once, and the new tokens of kept rows, several rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig

from burnish.errors import RolloutError
from burnish.forward.attention import packing_way
from burnish.forward.batch import rows_by
from burnish.forward.row_rules import quiet_outputs
from burnish.machine.matmul_precision import rounded_up, rounds_up
from burnish.rollouts.local.cache import Columns, Masks, PrefilledPrompts, RowCache, as_argument
from burnish.rollouts.local.reusable_rows import Held, KeptRow, Tokens
from burnish.types import PreTrainedModel

_TOKENS_PER_FORWARD = {"cpu": 2_048}
"""Prompt tokens (with padding) per forward pass, by type of device. More are not faster on a CPU."""
_TOKENS_PER_FORWARD_ELSEWHERE = 16_384
_PADDING = 0
"""Token for padding of rows that go on; any would do, because nothing sees it."""
_CACHED_PER_NEW = 8
"""A pass may copy this many times as many cached tokens as it may read new ones."""

Item = TypeVar("Item")


def tokens_per_forward(device: torch.device) -> int:
    """Number of tokens (with padding) that one pass reads on this device."""
    return _TOKENS_PER_FORWARD.get(device.type, _TOKENS_PER_FORWARD_ELSEWHERE)


def attention_kind(config: PreTrainedConfig) -> str:
    """`sdpa` or `eager`. RolloutError for models whose attention implementation does not accept our masks."""
    kind = "sdpa" if packing_way(config) is not None else str(config._attn_implementation)
    if kind not in ("sdpa", "eager"):
        raise RolloutError(
            f"the local engine cannot drive attention implementation {kind!r}",
            remedy="load the model with attention implementation 'sdpa' or 'eager'",
        )
    return kind


@dataclass(frozen=True, slots=True)
class PrefilledRows:
    """Some of the requested rows (indices), the prompt that each of them continues, and its own columns after it."""

    rows: list[int]
    prompts: PrefilledPrompts | None
    sources: list[int]
    own: Sequence[Columns] = ()


class Prefiller:
    """Computation of keys and values of all tokens of a prompt except the last, which is the first input of decoding.

    Rows arrive in the order of their prompts. If the rows of a prompt are split over two calls, its cache is kept
    between them.
    """

    def __init__(self, model: PreTrainedModel, *, pad_token_id: int) -> None:
        self._model = model
        self._pad_token_id = pad_token_id
        self._device = next(model.parameters()).device
        self._kept: tuple[Tokens, PrefilledPrompts] | None = None
        self._tokens = 0

    def take_token_count(self) -> int:
        """Prompt tokens computed since the last call, without padding."""
        count, self._tokens = self._tokens, 0
        return count

    def prefill(self, prompts: Sequence[Tokens], *, keep: Tokens | None) -> Iterator[PrefilledRows]:
        """Yield caches for rows with these prompts. The cache of `keep`, if among them, is kept for the next call."""
        rows_of = rows_by(prompts)
        short = [row for prompt, rows in rows_of.items() if len(prompt) == 1 for row in rows]
        if short:
            yield PrefilledRows(short, None, [0] * len(short))
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] in rows_of:
            yield self._rows([kept[0]], kept[1], rows_of)
            if keep == kept[0]:
                self._kept = kept
        done = kept[0] if kept is not None else None
        budget = tokens_per_forward(self._device)
        new = [prompt for prompt in rows_of if len(prompt) > 1 and prompt != done]
        for chunk in in_passes(new, lambda some: max(len(some[0]), len(some[-1])) * len(some) <= budget):
            computed = self._forward(chunk)
            if keep in chunk:
                self._kept = (keep, computed.prompt(chunk.index(keep), len(keep) - 1))
            yield self._rows(chunk, computed, rows_of)

    def _rows(
        self, chunk: Sequence[Tokens], computed: PrefilledPrompts, rows_of: dict[Tokens, list[int]]
    ) -> PrefilledRows:
        pairs = [(row, source) for source, prompt in enumerate(chunk) for row in rows_of[prompt]]
        return PrefilledRows([row for row, _ in pairs], computed, [source for _, source in pairs])

    def _forward(self, chunk: Sequence[Tokens]) -> PrefilledPrompts:
        """One forward pass, right-padded: causal attention is then enough to hide the padding from every real token."""
        longest = max(len(prompt) for prompt in chunk) - 1
        width = rounded_up(longest) if rounds_up(self._model) else longest
        padded = [list(prompt[:-1]) + [self._pad_token_id] * (width + 1 - len(prompt)) for prompt in chunk]
        cache = DynamicCache()
        positions = torch.arange(width, device=self._device).clamp(max=longest - 1).expand(len(chunk), -1)
        self._model(
            input_ids=torch.tensor(padded, device=self._device),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,  # none are needed, but 0 would mean all
            **as_argument(cache, self._model),
            **quiet_outputs(self._model),
        )
        self._tokens += sum(len(prompt) - 1 for prompt in chunk)
        return PrefilledPrompts([layer.keys for layer in cache.layers], [layer.values for layer in cache.layers])


def in_passes(items: Iterable[Item], fits: Callable[[list[Item]], bool]) -> Iterator[list[Item]]:
    """Yield consecutive items, as many as fit in a pass, at least one."""
    chunk: list[Item] = []
    for item in items:
        if chunk and not fits([*chunk, item]):
            yield chunk
            chunk = []
        chunk.append(item)
    if chunk:
        yield chunk


class RowReader:
    """Computation of keys and values of the tokens after a kept row, except the last, which is the first input of
    decoding.

    A row's new tokens are read in one pass, over the kept keys and values of its earlier ones. Each token is written to
    the column of its position, as in decoding, so the same masks hide columns that a row does not have.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._masks = Masks(model, attention_kind(model.config))

    def read_on(self, kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> Iterator[PrefilledRows]:
        """Yield the rows with their new tokens read. Each text begins with the kept tokens and has at least one more.
        Results refer to memory that all rows of a pass share: copy them to keep them."""
        new = [len(text) - 1 - len(row.text) for row, text in zip(kept, texts, strict=True)]
        # Decoders take rows with and without a prompt separately.
        for rows in rows_by((row.shared is None, count == 0) for row, count in zip(kept, new, strict=True)).values():
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
