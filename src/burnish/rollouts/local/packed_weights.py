"""Matrix products of a decoding step on a CPU, with weights in a layout made for them.

A decoding step multiplies a few rows by large matrices. From an ordinary tensor such a product runs at a fraction of
the processor's rate. oneDNN is faster if it may store the matrix in its own blocks, and so are our kernels if they may
store it in panels: they read memory while they multiply. The gain depends on the processor, so
`burnish.rollouts.local.kernel_trial` tests and times it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from burnish.errors import RolloutError
from burnish.forward.quantized_layers import is_quantized
from burnish.kernels.products import product_kernels
from burnish.machine import processor
from burnish.machine.matmul_precision import rounded_up
from burnish.models.lora import effective_weight

Product = Callable[[Tensor], Tensor]
"""(R, inputs) -> (R, outputs)."""

Layout = Literal["panels", "blocks", "ordinary"]
"""Layout of weights in memory: for our kernels, for oneDNN, or the model's own."""

_ROWS = 64
"""Rows that blocks are optimised for. Other numbers of rows also work."""


def has_blocks(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether oneDNN supports products with weights of this type in blocks on this processor."""
    if device.type != "cpu":
        return False
    if dtype == torch.bfloat16:
        return processor.has_onednn_bfloat16()
    return dtype == torch.float32 and processor.has_onednn()


def joined_product(*linears: nn.Module, layout: Layout) -> Product:
    """One product for all linear layers that read the same input, with their outputs concatenated. Adapters are merged
    in. Blocks need `has_blocks`.

    The weights are copied except for a single layer in the ordinary layout, so later training may not show in the
    product. Quantized weights are not copied but used as they are, next to adapters. Raises RolloutError if
    weights cannot be put into blocks, KernelError if the kernels cannot be built.
    """
    if is_quantized(*linears):
        return lambda inputs: torch.cat([linear(inputs) for linear in linears], dim=-1)
    weight, bias = _together([effective_weight(linear) for linear in linears])
    weight = weight.detach()
    if layout == "ordinary":
        return lambda inputs: linear(inputs, weight, bias)
    if layout == "blocks":
        return _with_blocks(weight, bias)
    kernels, outputs = product_kernels(weight.dtype), len(weight)
    panels = kernels.pack(weight)
    return lambda inputs: kernels.multiply(inputs, panels, outputs, bias)


def _with_blocks(weight: Tensor, bias: Tensor | None) -> Product:
    try:
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    except (RuntimeError, AttributeError) as error:  # oneDNN lacks processor support, or memory
        raise RolloutError(
            f"the weights cannot be packed for decoding: {' '.join(str(error).split())[:200]}",
            remedy=f"set {processor.WITHOUT}=onednn in the environment to decode without packing",
        ) from error

    def product(inputs: Tensor) -> Tensor:
        rows = len(inputs)
        more = rounded_up(rows) - rows if rows > _ROWS else 0  # of fewer rows there are not many numbers
        inputs = pad(inputs, (0, 0, 0, more)) if more else inputs
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, blocks, bias, "none", [], "")
        return result[:rows]

    return product


def _together(layers: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    weights = [weight for weight, _ in layers]
    if len(layers) == 1:
        return layers[0]
    biases = [weight.new_zeros(weight.shape[0]) if bias is None else bias for weight, bias in layers]
    has_bias = any(bias is not None for _, bias in layers)
    return torch.cat(weights), torch.cat(biases) if has_bias else None
