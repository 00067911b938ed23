"""Attention of `transformers` models over packed rows: registered functions that know where each token looks.

A model set to packed attention behaves as with `sdpa`, unless a pass hands it the keyword argument `packed`: then all
tokens of a micro-batch are in one row (`burnish.forward.packing`), and only attention has to know which of them belong
together. There are several ways to compute that; the name of the model's attention implementation says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from burnish.forward.copied_prompts import CopiedPrompts
from burnish.forward.flex_attention import FlexAttention
from burnish.forward.merged_attention import MergedAttention
from burnish.forward.packing import Packing
from burnish.forward.varlen_attention import VarlenAttention
from burnish.machine import processor
from burnish.machine.matmul_precision import usual_float32
from burnish.types import PreTrainedModel

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class PackedAttention(Protocol):
    """Attention over the packed row of one micro-batch. S slots, H heads, K key heads, D head size."""

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D); query heads share key heads in equal parts. `scaling` None is 1 / sqrt(D)."""


_Build = Callable[[Packing, torch.device, torch.dtype], PackedAttention]
_PREFIX = "burnish_"
WAYS: dict[str, _Build] = {
    "merged": lambda packing, device, dtype: MergedAttention(packing),
    "varlen": lambda packing, device, dtype: VarlenAttention(packing, device),
    "flex": lambda packing, device, dtype: FlexAttention(packing, device),
    "copied": lambda packing, device, dtype: CopiedPrompts(packing, device, dtype),
}
"""Implementations of attention over a packed row; `dtype` is the type of the attention scores."""


def ways_on(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The ways worth trying on this device, the plainest last, without any that `BURNISH_WITHOUT` names."""
    if device.type == "cpu":
        return ("merged",)
    if device.type == "mps":
        return ("copied",)
    has_varlen = dtype in (torch.bfloat16, torch.float16) and processor.allows("varlen_attention")
    has_flex = processor.allows("flex_attention")
    return (*(["varlen"] if has_varlen else []), *(["flex"] if has_flex else []), "copied")


def packing_way(config: PretrainedConfig) -> str | None:
    """The way in WAYS that a model of this config has been set to; None where it takes no packed rows."""
    name = str(config._attn_implementation)
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def attention_over(packing: Packing, model: PreTrainedModel, device: torch.device) -> PackedAttention:
    """Attention over a packed row, in the way that the model has been set to."""
    return WAYS[str(model.config._attn_implementation).removeprefix(_PREFIX)](packing, device, model.dtype)


def packs_rows(model: PreTrainedModel) -> bool:
    """Return whether the model has been set to packed attention."""
    return packing_way(model.config) is not None


def set_packed_attention(model: PreTrainedModel, way: str) -> bool:
    """Set the model to this way if it looks as if it could take packed rows; False where not, and nothing changes.

    Models qualify that run `sdpa` through the attention interface of transformers, with full attention in all layers
    and no convolution over neighbouring tokens, as recurrent layers have it. `burnish.forward.probe` tries them.
    """
    _register()
    config = model.config
    if packs_rows(model):
        model.set_attn_implementation(_PREFIX + way)
        return True
    settings = config.to_dict()
    full_attention = set(settings.get("layer_types") or ("full_attention",)) == {"full_attention"}
    if config._attn_implementation != "sdpa" or not model._can_set_attn_implementation() or not full_attention:
        return False
    if settings.get("layer_types") is None and settings.get("sliding_window") is not None:
        return False
    if any(isinstance(module, nn.Conv1d) for module in model.modules()):
        return False
    model.set_attn_implementation(_PREFIX + way)
    return packs_rows(model)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for way in WAYS:
        AttentionInterface.register(_PREFIX + way, packed_attention)
        AttentionMaskInterface.register(_PREFIX + way, sdpa_mask)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    packed: PackedAttention | None = None,
    **others: object,
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
    query_SHD, key_SKD, value_SKD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return packed.attend(query_SHD, key_SKD, value_SKD, scaling)[None], None
