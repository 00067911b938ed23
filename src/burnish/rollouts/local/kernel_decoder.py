"""Decoding of models of Llama's architecture on a CPU with C kernels: four products and four calls per layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.kernel_cache import CachedRow, KernelCache
from burnish.rollouts.local.llama_layers import LlamaLayers
from burnish.rollouts.local.packed_weights import Layout
from burnish.rollouts.local.reusable_rows import Held, KeptRow, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS_PER_ROW, _ROWS_PER_PASS = 32, 64
"""Limits of a reading pass. A thread keeps the attention scores of all the tokens that it reads of a row."""


class KernelDecoder:
    """A `Decoder` with the model's current weights. Make a new one when they change.

    Raises KernelError if the kernels cannot be built.
    """

    def __init__(self, model: PreTrainedModel, places: int, layout: Layout) -> None:
        self._parts = LlamaLayers.of(model, layout)
        self._kernels = decode_kernels(self._parts.embedding.weight.dtype)
        self._cache = KernelCache(self._parts.shape)

    def join(self, lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        self._cache.append(lengths, prompts, sources)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        return self._parts.head(self._states(self._cache, tokens_R, positions_R))

    def _states(self, cache: KernelCache, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        """Run the layers; return the inputs of the head."""
        parts, kernels = self._parts, self._kernels
        states_RX = parts.embedding(tokens_R)
        cosine_1RD, sine_1RD = parts.rotary(states_RX, positions_R[None])
        norms = parts.layers[0].head_norms
        epsilon = norms[0].epsilon if norms else 0.0
        step = cache.begin(positions_R, cosine_1RD[0].float(), sine_1RD[0].float(), epsilon)
        # Residuals are added to states_RX in place, in the same pass over memory as the next norm.
        more_RX = None
        for number, layer in enumerate(parts.layers):
            norm = layer.input_norm
            normed_RX = kernels.add_and_normalise(states_RX, more_RX, norm.weight, norm.epsilon)
            head_norms = None if layer.head_norms is None else (layer.head_norms[0].weight, layer.head_norms[1].weight)
            seen_RX = kernels.attend(step, number, layer.query_key_value(normed_RX), head_norms)
            norm = layer.output_norm
            normed_RX = kernels.add_and_normalise(states_RX, layer.attention_output(seen_RX), norm.weight, norm.epsilon)
            more_RX = layer.down(kernels.gate(layer.gate_up(normed_RX)))
        return kernels.add_and_normalise(states_RX, more_RX, parts.norm.weight, parts.norm.epsilon)

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        self._cache.move(sources, targets, num_rows)

    def kept(self, row: int, text: Tokens) -> KeptRow:
        entry = self._cache.row(row)
        return KeptRow(text, entry.prompt, entry)

    def go_on(self, kept: Sequence[KeptRow], texts: Sequence[Tokens]) -> list[int]:
        rows = _separate([row.own for row in kept])
        for chunk in _passes([len(row.text) for row in kept], [len(text) - 1 for text in texts]):
            counts = [stop - start for _, start, stop in chunk]
            cache = self._cache.reading([rows[i] for i, _, _ in chunk], counts)
            tokens = [token for i, start, stop in chunk for token in texts[i][start:stop]]
            positions = [position for _, start, stop in chunk for position in range(start, stop)]
            self._states(cache, torch.tensor(tokens), torch.tensor(positions))
        self._cache.add(rows)
        return list(range(len(rows)))


def _separate(entries: Sequence[Held]) -> list[CachedRow]:
    """Make the rows independent: a row from which several go on is copied."""
    rows: list[CachedRow] = []
    seen: set[int] = set()
    for entry in entries:
        assert isinstance(entry, CachedRow)
        rows.append(entry.copy() if id(entry) in seen else entry)
        seen.add(id(entry))
    return rows


def _passes(starts: Sequence[int], ends: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """(row, start, stop): the tokens of each row that each pass reads; the rest of a long row waits for a later
    pass."""
    at = list(starts)
    while waiting := [i for i, (start, end) in enumerate(zip(at, ends, strict=True)) if start < end]:
        for first in range(0, len(waiting), _ROWS_PER_PASS):
            chunk = waiting[first : first + _ROWS_PER_PASS]
            yield [(i, at[i], min(at[i] + _TOKENS_PER_ROW, ends[i])) for i in chunk]
        at = [min(start + _TOKENS_PER_ROW, end) for start, end in zip(at, ends, strict=True)]
