"""Attention of `transformers` models over packed rows: one registered function, which knows where each token looks.

A model set to ATTENTION behaves as with `sdpa`, unless a pass hands it the keyword argument `packed`: then all tokens
of a micro-batch stand in one row, and this function regroups them for attention only (everything else works token by
token and needs no padding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from burnish.forward.float32 import usual_float32
from burnish.forward.merged_attention import MergedAttention, merged_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "burnish_packed"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPart:
    """Rows of queries and what they may see; numbers are slots of the packed row.

    queries_NQ, keys_NK (int64; padding is any slot); mask (N or 1, 1, Q, K) is added to the scores, None is causal with
    the queries as keys.
    """

    queries_NQ: Tensor
    keys_NK: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class GatheredAttention:
    """For devices other than CPUs: the parts that together give every token its output; `place_S` is where each token
    stands in their outputs, one part after the other, row by row."""

    parts: tuple[AttentionPart, ...]
    place_S: Tensor


PackedAttention = GatheredAttention | MergedAttention


def set_packed_attention(model: PreTrainedModel) -> bool:
    """Set the model to ATTENTION where it looks as if it could take packed rows; False where not, and nothing changes.

    Models qualify that run `sdpa` through the attention interface of transformers, with full attention in all layers
    and no convolution over neighbouring tokens, as recurrent layers have it. `burnish.forward.probe` tries them.
    """
    _register()
    config = model.config
    if config._attn_implementation == ATTENTION:
        return True
    settings = config.to_dict()
    full_attention = set(settings.get("layer_types") or ("full_attention",)) == {"full_attention"}
    if config._attn_implementation != "sdpa" or not model._can_set_attn_implementation() or not full_attention:
        return False
    if settings.get("layer_types") is None and settings.get("sliding_window") is not None:
        return False
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        return False
    model.set_attn_implementation(ATTENTION)
    return packs_rows(model)


def packs_rows(model: PreTrainedModel) -> bool:
    """Whether the model has been set to ATTENTION."""
    return bool(model.config._attn_implementation == ATTENTION)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    packed: PackedAttention | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The signature of transformers' attention functions: query (1, heads, S, D), key and value (1, key heads, S, D)
    give (1, S, heads, D)."""
    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        with usual_float32():
            output: Tensor = sdpa_attention_forward(
                module, query, key, value, attention_mask, scaling=scaling, **others
            )[0]
        return output, None
    if isinstance(packed, MergedAttention):
        query_SHD, key_SKD, value_SKD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return merged_attention(query_SHD, key_SKD, value_SKD, packed, scaling)[None], None
    return _gathered_attention(query, key, value, packed, scaling), None


def _gathered_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: GatheredAttention, scaling: float | None
) -> Tensor:
    query_SX, key_SX, value_SX = (tensor[0].transpose(0, 1).flatten(1) for tensor in (query, key, value))
    heads, width = query.shape[1], query.shape[3]
    outputs = []
    for part in packed.parts:
        keys_NK = part.queries_NQ if part.mask is None else part.keys_NK
        output = scaled_dot_product_attention(
            _gathered(query_SX, part.queries_NQ, width),
            _repeated(_gathered(key_SX, keys_NK, width), heads),
            _repeated(_gathered(value_SX, keys_NK, value.shape[3]), heads),
            attn_mask=part.mask,
            is_causal=part.mask is None,
            scale=scaling,
        )
        outputs.append(output.transpose(1, 2).reshape(-1, heads * value.shape[3]))
    together = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    return together.index_select(0, packed.place_S).view(1, -1, heads, value.shape[3])


def _gathered(rows_SX: Tensor, slots_NQ: Tensor, width: int) -> Tensor:
    """(N, heads, Q, width): the slots' rows, heads apart."""
    picked = rows_SX.index_select(0, slots_NQ.flatten())
    return picked.view(*slots_NQ.shape, -1, width).transpose(1, 2)


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """Key heads, each as often as query heads share it."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
