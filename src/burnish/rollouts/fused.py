"""Decoding of models of Llama's build on a CPU, in few and large operations.

`transformers` runs a decoding step in some forty small operations per layer; for small models they, and not the
arithmetic, are what a token costs. Here a layer is fifteen: queries, keys and values are one product, gate and up
another, the weights lie as the processor wants them (`packed_weights`), and each prompt's keys stand once for all
its samples (`shared_cache`). Everything else is the model's own: `decodes_alike` tries whether the logits are too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.rollouts.cache import PrefilledPrompts
from burnish.rollouts.packed_weights import Product, can_pack, packed_product
from burnish.rollouts.prefill import Prefiller
from burnish.rollouts.shared_cache import CacheShape, SharedCache

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type`s whose layers are built as `FusedDecoder` computes them."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Relative distance of the logits that rounding explains; a layer computed otherwise is off by more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    weight: Tensor
    epsilon: float

    @staticmethod
    def of(module: Any) -> _Norm:
        return _Norm(module.weight.detach(), module.variance_epsilon)

    def __call__(self, states: Tensor) -> Tensor:
        """PyTorch's own `rms_norm` is six passes on a CPU, and twice as slow at a few dozen rows."""
        exact = states.float()
        size_X1 = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        shrink_X1 = size_X1.square_().mul_(1 / states.shape[-1]).add_(self.epsilon).rsqrt_()
        return torch.mul(exact, shrink_X1).to(states.dtype).mul_(self.weight)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """What a layer computes; `head_norms` are those of queries and keys where the family has them."""

    input_norm: _Norm
    query_key_value: Product
    head_norms: tuple[_Norm, _Norm] | None
    attention_output: Product
    output_norm: _Norm
    gate_up: Product
    activation: nn.Module
    down: Product

    @staticmethod
    def of(layer: Any, family: str) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            input_norm=_Norm.of(layer.input_layernorm),
            query_key_value=packed_product(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=(_Norm.of(attention.q_norm), _Norm.of(attention.k_norm)) if family == "qwen3" else None,
            attention_output=packed_product(attention.o_proj),
            output_norm=_Norm.of(layer.post_attention_layernorm),
            gate_up=packed_product(mlp.gate_proj, mlp.up_proj),
            activation=mlp.act_fn,
            down=packed_product(mlp.down_proj),
        )


class FusedDecoder:
    """A `Decoder` with the weights that the model has now; make a new one when they have changed."""

    def __init__(self, model: Any, places: int) -> None:
        config, trunk = model.config, model.base_model
        attention = trunk.layers[0].self_attn
        self._shape = CacheShape(
            layers=len(trunk.layers),
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_size=attention.head_dim,
            scaling=attention.scaling,
        )
        self._embedding = model.get_input_embeddings()
        self._rotary = trunk.rotary_emb
        self._layers = [_Layer.of(layer, config.model_type) for layer in trunk.layers]
        self._norm = _Norm.of(trunk.norm)
        self._head = packed_product(model.get_output_embeddings())
        self._cache = SharedCache(self._shape, places, self._embedding.weight.dtype)

    def join(self, prompt_lengths: Sequence[int], prompts: PrefilledPrompts | None, sources: Sequence[int]) -> None:
        self._cache.append(prompt_lengths, prompts, sources)

    def logits(self, tokens_R: Tensor, positions_R: Tensor) -> Tensor:
        self._cache.begin(positions_R)
        states_RX = self._embedding(tokens_R)
        rotation = self._rotation(states_RX, positions_R)
        for number, layer in enumerate(self._layers):
            states_RX = states_RX + self._attended(number, layer, layer.input_norm(states_RX), rotation)
            gate_RI, up_RI = layer.gate_up(layer.output_norm(states_RX)).chunk(2, dim=-1)
            states_RX = states_RX + layer.down(layer.activation(gate_RI).mul_(up_RI))
        return self._head(self._norm(states_RX))

    def move(self, sources: Tensor, targets: Tensor, num_rows: int) -> None:
        self._cache.move(sources, targets, num_rows)

    def _attended(self, number: int, layer: _Layer, states_RX: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        heads, key_heads, size = self._shape.heads, self._shape.key_heads, self._shape.head_size
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
        """Cosines, and sines with the sign that the half moved there takes: (R, 1, head size) each. Rotating the halves
        (x1, x2) -> (-x2, x1) is moving them and turning the sign of the first."""
        cosine_1RD, sine_1RD = self._rotary(states_RX, positions_R[None])
        first, second = sine_1RD[0].chunk(2, dim=-1)
        return cosine_1RD[0][:, None], torch.cat([-first, second], dim=-1)[:, None]


def can_decode(model: Any) -> bool:
    """Whether the model looks as `FusedDecoder` expects it; `decodes_alike` then tries."""
    if not isinstance(model, PreTrainedModel):
        return False
    weight = model.get_input_embeddings().weight
    return model.config.model_type in FAMILIES and can_pack(weight.device, weight.dtype)


@torch.no_grad()
def decodes_alike(model: Any) -> bool:
    """Whether three rows on two prompts, decoded for a few tokens, have the logits of the model itself.

    Weights that are not finite decode nothing alike.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, vocabulary, (2, 9), generator=generator).tolist()
    prompts = [tuple(texts[0][:6]), tuple(texts[0][:6]), tuple(texts[1][:4])]
    continuations = torch.randint(0, vocabulary, (3, 3), generator=generator)
    decoder = FusedDecoder(model, len(prompts))
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
