"""Keys and values for the decoding kernels (`burnish.kernels`): one tensor for each prompt and one for each row.

Rows (R) are samples, prompts (P) the distinct prompts that they continue. A prompt's tensor holds all its tokens except
the last, a row's tensor the last one and what follows. Rows change places by changing addresses. Data is copied only
when a row outgrows its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from burnish.forward.batch import rows_by
from burnish.kernels.decoding import BLOCK, DecodeStep, rounded_up
from burnish.rollouts.local.cache import PrefilledPrompts

_FIRST_COLUMNS = 64
_QUERIES = 16
"""Queries that read a prompt's keys together: rows times the query heads that share a key head."""


@dataclass(frozen=True, slots=True, eq=False)
class CacheShape:
    """The shape of each layer's cache, and the layout of the tensors that hold it. `scaling` multiplies the attention
    scores."""

    layers: int
    heads: int
    key_heads: int
    head_size: int
    scaling: float

    @property
    def width(self) -> int:
        """The head size rounded up."""
        return rounded_up(self.head_size)

    def empty(self, capacity: int) -> Tensor:
        """A tensor for so many tokens."""
        return torch.empty((2, self.layers, self.key_heads, capacity * self.width), dtype=torch.float32)

    def capacity(self, store: Tensor) -> int:
        """Tokens that a tensor has room for."""
        return store.shape[-1] // self.width

    def filled(self, prompts: PrefilledPrompts | None, index: int, length: int) -> Tensor:
        """A tensor with the first tokens of a prompt. `prompts` may be None for no tokens."""
        if prompts is None or length == 0:
            return self.empty(0)
        capacity = rounded_up(length)
        store = self.empty(capacity).zero_()  # the kernels need 0 between head size and width
        keys = store[0].view(self.layers, self.key_heads, -1, self.width, BLOCK)
        values = store[1].view(self.layers, self.key_heads, capacity, self.width)
        for layer in range(self.layers):
            key_KTD = store.new_zeros(self.key_heads, capacity, self.head_size)
            key_KTD[:, :length] = prompts.keys[layer][index, :, :length]
            keys[layer, :, :, : self.head_size] = key_KTD.unflatten(1, (-1, BLOCK)).transpose(2, 3)
            values[layer, :, :length, : self.head_size] = prompts.values[layer][index, :, :length]
        return store


@dataclass(slots=True, eq=False)
class _Prompt:
    """`store` (2, layers, key heads, capacity x width): keys in blocks (capacity / BLOCK, width, BLOCK), then values
    (capacity, width)."""

    store: Tensor
    length: int

    @property
    def num_bytes(self) -> int:
        return self.store.nbytes


@dataclass(slots=True, eq=False)
class CachedRow:
    """One sample. `store` has the layout of a prompt's; `first` is the position of its first token."""

    prompt: _Prompt
    first: int
    store: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of the row, without the prompt's."""
        return self.store.nbytes

    def copy(self) -> CachedRow:
        """An independent row with the same prompt."""
        return CachedRow(self.prompt, self.first, self.store.clone())


class KernelCache:
    """The cache of prompts and rows, in float32 whatever the model's dtype."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._rows: list[CachedRow] = []
        self._step = DecodeStep(
            heads=shape.heads,
            key_heads=shape.key_heads,
            size=shape.head_size,
            width=shape.width,
            layers=shape.layers,
            scaling=shape.scaling,
        )
        self._held: dict[str, Tensor] = {}
        self._capacity_R = torch.empty(0, dtype=torch.int64)
        self._first_R = torch.empty(0, dtype=torch.int64)
        self._longest_prompt = 0
        self._queries = 0

    def append(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        """Add rows. Row i has a prompt of `prompt_lengths[i]` tokens, of which all but the last are cached in prompt
        `sources[i]` (`prompts` is None for prompts of one token)."""
        stored: dict[int, _Prompt] = {}
        for length, source in zip(prompt_lengths, sources, strict=True):
            if source not in stored:
                stored[source] = _Prompt(self._shape.filled(prompts, source, length - 1), length - 1)
            self._rows.append(CachedRow(stored[source], length - 1, self._shape.empty(_FIRST_COLUMNS)))
        self._regroup()

    def row(self, number: int) -> CachedRow:
        """The cache of a row. Once the row has left, `add` can bring it back, here or in another cache."""
        return self._rows[number]

    def add(self, rows: Sequence[CachedRow]) -> None:
        """Add rows as they were when they left."""
        self._rows += rows
        self._regroup()

    def reading(self, rows: Sequence[CachedRow], counts: Sequence[int]) -> KernelCache:
        """A cache for one step in which each of these rows has `counts[i]` new tokens, in the order of their positions.

        To the kernels they are rows with one store. They are one tile, which writes all its keys before it reads any,
        so every token sees the tokens before it.
        """
        cache = KernelCache(self._shape)
        for row, count in zip(rows, counts, strict=True):
            cache._rows += [row] * count
        starts = [0, *accumulate(counts)]
        cache._arrange([(start, count) for start, count in zip(starts, counts, strict=False)])
        return cache

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        """Move rows `sources` to the places of rows `targets`, and keep only the first `num_rows`."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._rows[target] = self._rows[source]
        del self._rows[num_rows:]
        self._regroup()

    def begin(self, positions_R: Tensor, cosine_RD: Tensor, sine_RD: Tensor, epsilon: float) -> DecodeStep:
        """Make room for each row's token at these positions in its sequence. Positions are rotated by these float32
        cosines and sines. `epsilon`: of the head norms, if any.

        The result is valid until the next call of any method.
        """
        if cosine_RD.shape != (len(self._rows), self._shape.head_size) or cosine_RD.dtype != torch.float32:
            raise ValueError(f"rotations must have {self._shape.head_size} float32 numbers per row")
        column_R = positions_R - self._first_R
        if bool((column_R >= self._capacity_R).any()):
            self._grow(column_R.tolist())
        self._point(column_R=column_R, cosine_RD=cosine_RD.contiguous(), sine_RD=sine_RD.contiguous())
        self._step.epsilon = epsilon
        self._reserve_scratch(int(column_R.max()))
        return self._step

    def _regroup(self) -> None:
        """Update everything that depends on which rows are in use."""
        # Rows per tile: each brings all query heads that share a key head, and a tile holds about _QUERIES queries.
        size = max(1, _QUERIES * self._shape.key_heads // self._shape.heads)
        order: list[int] = []
        tiles: list[tuple[int, int]] = []
        for rows in rows_by(id(entry.prompt) for entry in self._rows).values():
            tiles += [(len(order) + i, min(size, len(rows) - i)) for i in range(0, len(rows), size)]
            order += rows
        self._arrange(tiles, order)

    def _arrange(self, tiles: Sequence[tuple[int, int]], order: Sequence[int] | None = None) -> None:
        """Take these tiles: the first place in `order`, and the number of rows, which have one prompt."""
        order = list(range(len(self._rows))) if order is None else order
        prompts = list({id(row.prompt): row.prompt for row in self._rows}.values())
        number = {id(prompt): i for i, prompt in enumerate(prompts)}
        tiles_T3 = [(first, count, number[id(self._rows[order[first]].prompt)]) for first, count in tiles]
        shared = self._shape.heads // self._shape.key_heads
        self._queries = max((count * shared for _, count in tiles), default=0)
        self._first_R = _numbers([row.first for row in self._rows])
        self._longest_prompt = max((prompt.length for prompt in prompts), default=0)
        self._step.rows, self._step.tiles = len(self._rows), len(tiles)
        self._point(
            order=_numbers(order),
            tiles_T3=_numbers(tiles_T3),
            prompt_P=_numbers([prompt.store.data_ptr() for prompt in prompts]),
            prompt_capacity_P=_numbers([self._shape.capacity(prompt.store) for prompt in prompts]),
            prompt_length_P=_numbers([prompt.length for prompt in prompts]),
        )
        self._readdress()

    def _readdress(self) -> None:
        self._capacity_R = _numbers([self._shape.capacity(row.store) for row in self._rows])
        self._point(own_R=_numbers([row.store.data_ptr() for row in self._rows]), own_capacity_R=self._capacity_R)

    def _grow(self, columns: Sequence[int]) -> None:
        for row, column in zip(self._rows, columns, strict=True):
            capacity = self._shape.capacity(row.store)
            if column >= capacity:
                wider = self._shape.empty(rounded_up(max(column + 1, capacity * 3 // 2)))
                wider[..., : row.store.shape[-1]] = row.store
                row.store = wider
        self._readdress()

    def _reserve_scratch(self, longest: int) -> None:
        """Scratch memory of each thread: queries, outputs and scores of one tile."""
        seen = rounded_up(self._longest_prompt) + rounded_up(longest + 1)
        wanted = max(_QUERIES, self._queries) * (2 * self._shape.width + seen)
        threads = torch.get_num_threads()
        if wanted > self._step.scratch_size or threads != self._step.threads:
            self._step.scratch_size, self._step.threads = wanted * 3 // 2 // BLOCK * BLOCK, threads
            self._point(scratch=torch.empty(threads * self._step.scratch_size, dtype=torch.float32))

    def _point(self, **tensors: Tensor) -> None:
        """Set fields of the step to the addresses of these tensors, and keep the tensors alive."""
        self._held |= tensors
        for name, tensor in tensors.items():
            setattr(self._step, name, tensor.data_ptr())


def _numbers(numbers: Sequence[int] | Sequence[tuple[int, int, int]]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
