"""Decoding of models of Llama's architecture on a CPU with C kernels: four products and four calls per layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.kernel_cache import CachedRow, CacheShape, KernelCache
from burnish.rollouts.local.packed_weights import Layout, Product, joined_product
from burnish.rollouts.local.reusable_rows import Held, KeptRow, Tokens
from burnish.types import PreTrainedModel

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


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """An RMS norm. `weight` is contiguous and of the model's dtype."""

    weight: Tensor
    epsilon: float

    @staticmethod
    def of(module: Any, dtype: torch.dtype) -> Norm:
        return Norm(module.weight.detach().to(dtype).contiguous(), module.variance_epsilon)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The norms and products of a layer. `head_norms`: norms of queries and keys, if the family has them."""

    input_norm: Norm
    query_key_value: Product
    head_norms: tuple[Norm, Norm] | None
    attention_output: Product
    output_norm: Norm
    gate_up: Product
    down: Product

    @staticmethod
    def of(layer: Any, family: str, dtype: torch.dtype, layout: Layout) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = family == "qwen3"
        return Layer(
            input_norm=Norm.of(layer.input_layernorm, dtype),
            query_key_value=joined_product(attention.q_proj, attention.k_proj, attention.v_proj, layout=layout),
            head_norms=(Norm.of(attention.q_norm, dtype), Norm.of(attention.k_norm, dtype)) if has_norms else None,
            attention_output=joined_product(attention.o_proj, layout=layout),
            output_norm=Norm.of(layer.post_attention_layernorm, dtype),
            gate_up=joined_product(mlp.gate_proj, mlp.up_proj, layout=layout),
            down=joined_product(mlp.down_proj, layout=layout),
        )


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayers:
    """The parts of the model, with its current weights joined for decoding. Only the embedding is the live one."""

    shape: CacheShape
    embedding: Any
    rotary: Any
    layers: tuple[Layer, ...]
    norm: Norm
    head: Product

    @staticmethod
    def of(model: PreTrainedModel, layout: Layout) -> LlamaLayers:
        """layout: of the weights of products."""
        config, trunk = model.config, model.base_model
        attention = trunk.layers[0].self_attn
        embedding = model.get_input_embeddings()
        dtype = embedding.weight.dtype
        return LlamaLayers(
            shape=CacheShape(
                layers=len(trunk.layers),
                heads=config.num_attention_heads,
                key_heads=config.num_key_value_heads,
                head_size=attention.head_dim,
                scaling=attention.scaling,
            ),
            embedding=embedding,
            rotary=trunk.rotary_emb,
            layers=tuple(Layer.of(layer, config.model_type, dtype, layout) for layer in trunk.layers),
            norm=Norm.of(trunk.norm, dtype),
            head=joined_product(model.get_output_embeddings(), layout=layout),
        )
