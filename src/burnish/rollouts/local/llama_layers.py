"""The parts of a model of Llama's architecture, with weights joined for decoding, in the layout that suits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.rollouts.local.kernel_cache import CacheShape
from burnish.rollouts.local.packed_weights import Layout, Product, joined_product

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    """The model's current weights. Only the embedding is the live one."""

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
