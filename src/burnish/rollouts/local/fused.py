"""Decoding of models of Llama's architecture on a CPU, in few large operations.

`transformers` runs a decoding step in about forty small operations per layer. For small models a token's cost is these
operations, not the arithmetic. Here a layer takes fifteen: queries, keys and values are one product, gate and up
another, weights may be packed for the processor (`packed_weights`), and each prompt's keys are stored once for all its
samples (`shared_cache`). Everything else is the model's own. `decodes_alike` tests whether the logits are too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.forward.few_layers import telling_layers
from burnish.forward.kernel_layers import FAMILIES
from burnish.rollouts.local.decoders import CopyingDecoder, MakeDecoder
from burnish.rollouts.local.llama_layers import Layer, LlamaLayers
from burnish.rollouts.local.packed_weights import Layout
from burnish.rollouts.local.prefill import Prefiller
from burnish.rollouts.local.shared_cache import SharedCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Relative distance of the logits that rounding explains. A layer computed differently is off by more."""


class FusedDecoder(CopyingDecoder):
    """A `Decoder` with the model's current weights. Make a new one when they change."""

    _cache: SharedCache

    def __init__(self, model: PreTrainedModel, places: int, layout: Layout | None = None) -> None:
        self._parts = LlamaLayers.of(model, layout)
        super().__init__(model, SharedCache(self._parts.shape, places, self._parts.embedding.weight.dtype))

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        self._cache.begin(positions_R)
        states_RX = self._parts.embedding(tokens_R)
        rotation = self._rotation(states_RX, positions_R)
        for number, layer in enumerate(self._parts.layers):
            states_RX = states_RX + self._attended(number, layer, layer.input_norm(states_RX), rotation)
            gate_RI, up_RI = layer.gate_up(layer.output_norm(states_RX)).chunk(2, dim=-1)
            states_RX = states_RX + layer.down(layer.activation(gate_RI).mul_(up_RI))
        return self._parts.head(self._parts.norm(states_RX))

    def _attended(self, number: int, layer: Layer, states_RX: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        shape = self._parts.shape
        heads, key_heads, size = shape.heads, shape.key_heads, shape.head_size
        everything = layer.query_key_value(states_RX).view(len(states_RX), -1, size)
        turning = everything[:, : heads + key_heads]
        if layer.head_norms is not None:
            query, key = turning.split((heads, key_heads), dim=1)
            turning = torch.cat([layer.head_norms[0](query), layer.head_norms[1](key)], dim=1)
        cosine, signed_sine = rotation
        turned = torch.addcmul(turning * cosine, turning.roll(size // 2, -1), signed_sine)
        query, key = turned.split((heads, key_heads), dim=1)
        output_RHD = self._cache.attend(number, query, key, everything[:, heads + key_heads :])
        return layer.attention_output(output_RHD.flatten(1))

    def _rotation(self, states_RX: Tensor, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, (R, 1, head size) each. Rotating the halves (x1, x2) -> (-x2, x1) is a `roll` with
        the sign of the first half flipped, and that sign is part of the sines."""
        cosine_1RD, sine_1RD = self._parts.rotary(states_RX, positions_R[None])
        first, second = sine_1RD[0].chunk(2, dim=-1)
        return cosine_1RD[0][:, None], torch.cat([-first, second], dim=-1)[:, None]


def can_decode(model: PreTrainedModel) -> bool:
    """Whether the model looks as `FusedDecoder` expects. `decodes_alike` then tests it."""
    if not isinstance(model, PreTrainedModel):
        return False
    weight = model.get_input_embeddings().weight
    return model.config.model_type in FAMILIES and weight.device.type == "cpu" and weight.dtype in TOLERANCE


@torch.no_grad()
def decodes_alike(model: PreTrainedModel, make: MakeDecoder = FusedDecoder) -> bool:
    """Whether three rows on two prompts, decoded for a few tokens, have the model's own logits, with as many of its
    layers as it takes to tell (`telling_layers`).

    False if any of their weights is not finite.
    """
    with telling_layers(model):
        return _decodes_alike(model, make)


def _decodes_alike(model: PreTrainedModel, make: MakeDecoder) -> bool:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, vocabulary, (2, 20), generator=generator).tolist()
    prompts = [tuple(texts[0]), tuple(texts[0]), tuple(texts[1][:4])]
    continuations = torch.randint(0, vocabulary, (3, 3), generator=generator)
    decoder = make(model, len(prompts))
    lengths = []
    for chunk in Prefiller(model, pad_token_id=0).prefill(prompts, keep=None):
        decoder.join([len(prompts[row]) for row in chunk.rows], chunk.prompts, chunk.sources)
        lengths += [len(prompts[row]) for row in chunk.rows]
    tokens, positions = torch.tensor([prompt[-1] for prompt in prompts]), torch.tensor(lengths) - 1
    decoded = []
    for step in range(continuations.shape[1] + 1):
        decoded.append(decoder.logits(tokens, positions + step))
        tokens = continuations[:, min(step, 2)]
    found_RSV = torch.stack(decoded, dim=1).float()
    wanted_RSV = torch.stack(
        [
            model(input_ids=torch.tensor([[*prompt, *row]]), use_cache=False, logits_to_keep=4).logits[0]
            for prompt, row in zip(prompts, continuations.tolist(), strict=True)
        ]
    ).float()
    tolerance = TOLERANCE[model.get_input_embeddings().weight.dtype]
    return float((found_RSV - wanted_RSV).norm()) <= tolerance * float(wanted_RSV.norm())
