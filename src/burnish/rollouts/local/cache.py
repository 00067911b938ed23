"""The key/value cache of the local engine: preallocated rows of different lengths.

Row r holds its tokens in columns 0 .. length - 1, without left padding. Rows of any length can share the cache, a new
token is written in place at its own position, and a free row can be reused at any time.
Shapes of one layer: (rows, heads, columns, head size).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from burnish.forward.boundaries import layer_kinds
from burnish.forward.row_rules import takes
from burnish.types import PreTrainedModel

_FIRST_COLUMNS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Keys and values of consecutive tokens of one row: (heads, tokens, head size) of each layer."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def width(self) -> int:
        return self.keys[0].shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def copy(self) -> Columns:
        return Columns([tensor.clone() for tensor in self.keys], [tensor.clone() for tensor in self.values])


@dataclass(frozen=True, slots=True)
class PrefilledPrompts:
    """Keys and values of a few prompts, per layer, right-padded to the longest (padding is finite)."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def width(self) -> int:
        return self.keys[0].shape[2]

    @staticmethod
    def of(rows: Sequence[Columns]) -> PrefilledPrompts:
        """Join several prompts, in this order."""
        return PrefilledPrompts(
            [_padded(layers) for layers in zip(*(row.keys for row in rows), strict=True)],
            [_padded(layers) for layers in zip(*(row.values for row in rows), strict=True)],
        )

    def prompt(self, index: int, width: int) -> PrefilledPrompts:
        """A copy of one prompt, so that the others can be freed."""
        return PrefilledPrompts(
            [tensor[index : index + 1, :, :width].clone() for tensor in self.keys],
            [tensor[index : index + 1, :, :width].clone() for tensor in self.values],
        )


class RowCache(Cache):
    """Keys and values of the rows being decoded. Rows 0 .. `num_rows` - 1 are in use.

    `begin` sets where each row's next tokens go. The model's layers then call `update` with as many tokens per row.
    """

    def __init__(self, max_rows: int, *, columns: int = _FIRST_COLUMNS) -> None:
        """columns: initial capacity."""
        super().__init__(layers=[])
        self.num_rows = 0
        self._max_rows = max_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._columns = columns
        self._row_index = torch.empty(0, 1, dtype=torch.int64)
        self._positions = torch.empty(0, 1, dtype=torch.int64)
        self._width = 0

    def begin(self, positions_RT: Tensor, width: int) -> None:
        """Make room for T tokens of each of the first R rows. positions: int64, the columns to write, all below
        `width`."""
        self.reserve(width)
        self._positions = positions_RT
        self._row_index = torch.arange(len(positions_RT), device=positions_RT.device)[:, None]

    def reserve(self, width: int) -> None:
        """Make room for columns up to `width`, which are the columns in use."""
        self._reserve(width)
        self._width = width

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object) -> tuple:
        """Write (rows, heads, T, head size) of one layer and return all columns in use."""
        self._ensure_layer(layer_idx, key_states, value_states)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._row_index, :, self._positions] = key_states.transpose(1, 2)
        values[self._row_index, :, self._positions] = value_states.transpose(1, 2)
        rows = len(self._positions)
        return keys[:rows, :, : self._width], values[:rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._width - self._positions.shape[1] if self._width else 0

    def append(
        self,
        lengths: Sequence[int],
        prompts: PrefilledPrompts | None,
        sources: Sequence[int],
        own: Sequence[Columns] | None = None,
    ) -> None:
        """Add rows. Row i starts with the cache of prompt `sources[i]` (empty if prompts is None). Its own columns
        follow, up to the last but one of its `lengths[i]` tokens."""
        first, self.num_rows = self.num_rows, self.num_rows + len(lengths)
        self._reserve(max(max(lengths), prompts.width if prompts else 0))
        if prompts is not None:
            index = torch.tensor(sources, device=prompts.keys[0].device)
            for layer, (keys, values) in enumerate(zip(prompts.keys, prompts.values, strict=True)):
                self._ensure_layer(layer, keys, values)
                self._keys[layer][first : self.num_rows, :, : prompts.width] = keys[index]
                self._values[layer][first : self.num_rows, :, : prompts.width] = values[index]
        for row, (length, columns) in enumerate(zip(lengths, own or (), strict=False), start=first):
            place = slice(length - 1 - columns.width, length - 1)
            for layer, (keys, values) in enumerate(zip(columns.keys, columns.values, strict=True)):
                self._ensure_layer(layer, keys[None], values[None])
                self._keys[layer][row, :, place] = keys
                self._values[layer][row, :, place] = values

    def tensors(self) -> Iterator[Tensor]:
        """Yield all keys and values."""
        yield from self._keys
        yield from self._values

    def columns(self, row: int, start: int, stop: int) -> Columns:
        """Return views of a row's keys and values in these columns, valid until the next call of any method."""
        return Columns(
            [tensor[row, :, start:stop] for tensor in self._keys],
            [tensor[row, :, start:stop] for tensor in self._values],
        )

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Copy rows `sources` over rows `targets`, and keep only the first `num_rows`."""
        if len(sources):
            for tensor in (*self._keys, *self._values):
                tensor[targets, :, : self._width] = tensor[sources, :, : self._width]
        self.num_rows = num_rows

    def _ensure_layer(self, layer: int, keys: Tensor, values: Tensor) -> None:
        while len(self._keys) <= layer:
            self._keys.append(self._empty(keys))
            self._values.append(self._empty(values))

    def _empty(self, like: Tensor) -> Tensor:
        # Zeros, not uninitialised memory: a masked column has weight 0, but 0 times a stray NaN would still be NaN.
        return like.new_zeros(self._max_rows, like.shape[1], self._columns, like.shape[3])

    def _reserve(self, width: int) -> None:
        if width <= self._columns:
            return
        self._columns = max(width, self._columns * 3 // 2)
        self._keys = [self._widened(tensor) for tensor in self._keys]
        self._values = [self._widened(tensor) for tensor in self._values]

    def _widened(self, tensor: Tensor) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, 0, 0, self._columns - tensor.shape[2]))


def _padded(prompts: Sequence[Tensor]) -> Tensor:
    """(prompts, heads, tokens of the longest, head size)."""
    width = max(tensor.shape[1] for tensor in prompts)
    first = prompts[0]
    together = first.new_zeros(len(prompts), first.shape[0], width, first.shape[2])
    for number, tensor in enumerate(prompts):
        together[number, :, : tensor.shape[1]] = tensor
    return together


def as_argument(cache: Cache, model: PreTrainedModel) -> dict[str, Cache]:
    """The cache as a keyword argument, under its name in the model's forward pass (`burnish.forward.versions`)."""
    return {"cache" if takes(model, "cache") else "past_key_values": cache}


class Masks:
    """Masks over the columns of a `RowCache` that each new token sees, in the form that a model takes.

    By kind of layer, attention reaches the last `window` tokens, tokens of the same `chunk`, or all. This follows the
    masks of `transformers`; `burnish.rollouts.local.choice` tests whether it holds for a model.
    """

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        self._attention = attention
        self._dtype = next(model.parameters()).dtype
        settings = model.config.to_dict()
        window = settings.get("sliding_window") if settings.get("use_sliding_window") is not False else None
        limits = {"sliding_attention": window, "chunked_attention": settings.get("attention_chunk_size")}
        kinds = layer_kinds(model.config) or {"sliding_attention" if window else "full_attention"}
        self._limits: dict[str, int | None] = {kind: limits.get(kind) or None for kind in sorted(kinds)}

    def __call__(self, positions_RT: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """(R, 1, T, width). Once a row exceeds a window, a dictionary by kind of layer for models that have several
        kinds, which is how they take masks."""
        columns, positions = torch.arange(width, device=positions_RT.device), positions_RT[:, :, None]
        seen = columns <= positions
        if all(limit is None or width <= limit for limit in self._limits.values()):
            return self._as_mask(seen)
        by_kind = {kind: self._as_mask(seen & near) for kind, near in self._near(columns, positions)}
        return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))

    def _near(self, columns_W: Tensor, positions_RT1: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Kind and (R, T, W): the columns that are not too far back for a token at this position."""
        for kind, limit in self._limits.items():
            if limit is None:
                yield kind, torch.ones_like(columns_W, dtype=torch.bool)
            elif kind == "sliding_attention":
                yield kind, columns_W > positions_RT1 - limit
            else:
                yield kind, columns_W // limit == positions_RT1 // limit

    def _as_mask(self, seen_RTW: Tensor) -> Tensor:
        visible = seen_RTW[:, None]
        if self._attention == "sdpa":
            return visible
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, lowest)
