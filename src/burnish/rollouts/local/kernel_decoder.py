"""Decoding of models of Llama's architecture on a CPU with C kernels: four products and four calls per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.kernel_cache import KernelCache
from burnish.rollouts.local.llama_layers import LlamaLayers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class KernelDecoder:
    """A `Decoder` with the model's current weights. Make a new one when they change.

    Raises KernelError if the kernels cannot be built.
    """

    def __init__(self, model: PreTrainedModel, places: int, *, packed: bool | None = None) -> None:
        self._parts = LlamaLayers.of(model, packed=packed)
        self._kernels = decode_kernels(self._parts.embedding.weight.dtype)
        self._cache = KernelCache(self._parts.shape)

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        self._cache.append(prompt_lengths, prompts, sources)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        parts, kernels = self._parts, self._kernels
        states_RX = parts.embedding(tokens_R)
        cosine_1RD, sine_1RD = parts.rotary(states_RX, positions_R[None])
        norms = parts.layers[0].head_norms
        epsilon = norms[0].epsilon if norms else 0.0
        step = self._cache.begin(positions_R, cosine_1RD[0].float(), sine_1RD[0].float(), epsilon)
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
        return parts.head(kernels.add_and_normalise(states_RX, more_RX, parts.norm.weight, parts.norm.epsilon))

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        self._cache.move(sources, targets, num_rows)
