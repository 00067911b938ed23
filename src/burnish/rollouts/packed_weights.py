"""Matrix products of a decoding step on a CPU, with weights laid out anew for them.

A decoding step multiplies a few rows with large matrices. oneDNN does that at its full rate when it may keep the
matrix in blocks of its own; from an ordinary tensor the same product runs at a half or, for eight rows, a quarter of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from burnish.models.lora import effective_weight

Product = Callable[[Tensor], Tensor]
"""(R, inputs) -> (R, outputs)."""

_ROWS = 64
"""Rows that the layout is made for; other numbers run as well with it."""


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are packed products for these weights."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()


def packed_product(*linears: nn.Module) -> Product:
    """One product for all linear layers that read the same input; their outputs stand side by side. Adapters are
    added in.

    The weights are copied: what trains later does not show in it.
    """
    weight, bias = _together([effective_weight(linear) for linear in linears])
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)

    def product(inputs: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
        return result

    return product


def _together(layers: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    weights = [weight for weight, _ in layers]
    if len(layers) == 1:
        return layers[0]
    biases = [weight.new_zeros(weight.shape[0]) if bias is None else bias for weight, bias in layers]
    has_bias = any(bias is not None for _, bias in layers)
    return torch.cat(weights), torch.cat(biases) if has_bias else None
