"""Frozen linear layers whose weights take 4 or 8 bits each, for training adapters on top of them (QLoRA, Dettmers et
al. 2023, arXiv:2305.14314).

A layer computes with the numbers that its codes stand for, in the model's dtype. Reading `weight` builds them as a new
tensor, so adapters are merged, saved and sent as on an ordinary layer with these rounded weights.

Shapes: O outputs, I inputs; panels and groups as in `burnish.kernels.products`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from burnish.errors import KernelError, ModelError
from burnish.kernels.products import GROUP, PANEL, quantized_kernels
from burnish.types import PreTrainedModel, Quantization, UseKernels

BITS: dict[Quantization, int] = {"int8": 8, "nf4": 4}
_WHOLE = 127
"""The largest code of int8."""
_NORMAL_FLOATS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The 16 values of nf4, from the paper's appendix E."""
_ROWS_FOR_KERNELS = 64
"""From more rows than this on, it is faster to make the weight and multiply by it."""


class QuantizedLinear(nn.Linear):
    """A linear layer without gradient whose weight is kept in few bits. Made by `quantize`, never directly."""

    bits: int
    dtype: torch.dtype
    """Of the weight that it computes with."""
    uses_kernels: bool
    codes: Tensor
    """(panels, I, PANEL) int8, or (panels, I, PANEL / 2) uint8 with two codes of 4 bits each."""
    scales: Tensor
    """(panels, groups, PANEL) float32."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(O, I): the numbers that the layer computes with, made anew at each call."""
        if self.uses_kernels:
            return quantized_kernels(self.dtype).dequantize(self.codes, self.scales, self.bits, self.out_features)
        return dequantized(self.codes, self.scales, self.out_features).to(self.dtype)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save only name and shape of the weight: `burnish.models.lora.merged_weights` makes it when its turn comes."""
        destination[f"{prefix}weight"] = torch.empty(
            self.out_features, self.in_features, dtype=self.dtype, device="meta"
        )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:
            result: Tensor = _FrozenProduct.apply(input, self)  # type: ignore[no-untyped-call]
            return result
        fits = input.dim() == 2 and input.dtype == self.dtype and len(input) <= _ROWS_FOR_KERNELS
        if self.uses_kernels and fits:
            kernels = quantized_kernels(self.dtype)
            return kernels.multiply(input, self.codes, self.scales, self.bits, self.out_features, self.bias)
        return functional.linear(input, self.weight, self.bias)


class _FrozenProduct(torch.autograd.Function):
    """A product with a weight that is made again for the backward pass, so that no pass keeps it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(inputs, layer.weight, layer.bias)

    @staticmethod
    @once_differentiable  # type: ignore[misc]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.weight, None


@torch.no_grad()
def quantize(model: PreTrainedModel, quantization: Quantization, dtype: torch.dtype, kernels: UseKernels) -> None:
    """Keep the weights of the model's linear layers in few bits, one layer after the other. Embeddings, norms and the
    output head stay as they are, in `dtype`. Layers on the CPU use C kernels if they can be built.

    Raises ModelError if the model has no linear layers, KernelError if kernels are required and cannot be built.
    """
    layers = [part for part in model.base_model.modules() if type(part) is nn.Linear]
    if not layers:
        raise ModelError(
            f"model.quantization is {quantization!r}, but {type(model).__name__} has no layers of the class nn.Linear",
            remedy="remove model.quantization",
        )
    uses_kernels = _has_kernels(model, dtype, kernels)
    for layer in layers:
        weight = layer._parameters.pop("weight")
        assert weight is not None
        codes, scales = quantized(weight, quantization)
        layer.__class__ = QuantizedLinear
        assert isinstance(layer, QuantizedLinear)
        layer.bits, layer.dtype, layer.uses_kernels = BITS[quantization], dtype, uses_kernels
        # Not in the state dict, which is read under the names of ordinary models.
        layer.register_buffer("codes", codes, persistent=False)
        layer.register_buffer("scales", scales, persistent=False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype


@torch.no_grad()
def restore(model: PreTrainedModel) -> None:
    """Put ordinary layers back, with the weights that the quantized ones computed with."""
    for layer in [part for part in model.modules() if isinstance(part, QuantizedLinear)]:
        weight = layer.weight
        for name in ("codes", "scales"):
            delattr(layer, name)
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.weight = nn.Parameter(weight)  # type: ignore[misc]


def _has_kernels(model: PreTrainedModel, dtype: torch.dtype, kernels: UseKernels) -> bool:
    if kernels == "off" or model.device.type != "cpu":
        return False
    try:
        quantized_kernels(dtype)
    except KernelError:  # `auto`: no kernels can be built then, and loading the model reports why
        if kernels == "required":
            raise
        return False
    return True


def is_quantized(*modules: nn.Module) -> bool:
    """Return whether any of the modules, or of their parts, keeps its weight in few bits."""
    return any(isinstance(part, QuantizedLinear) for module in modules for part in module.modules())


def quantized(weight_OI: Tensor, quantization: Quantization) -> tuple[Tensor, Tensor]:
    """(codes, scales) of the nearest numbers, with the largest one of each group exact up to its sign."""
    outputs, inputs = weight_OI.shape
    panels, groups = -(-outputs // PANEL), -(-inputs // GROUP)
    padded = functional.pad(weight_OI.float(), (0, groups * GROUP - inputs, 0, panels * PANEL - outputs))
    grouped = padded.view(panels, PANEL, groups, GROUP)
    highest = grouped.abs().amax(-1, keepdim=True)
    shares = (grouped / highest).nan_to_num_(0.0)  # groups of zeros only
    if quantization == "int8":
        codes, scales = (shares * _WHOLE).round_().to(torch.int8), highest / _WHOLE
    else:
        table = torch.tensor(_NORMAL_FLOATS, device=weight_OI.device)
        codes, scales = torch.bucketize(shares, (table[1:] + table[:-1]) / 2).to(torch.uint8), highest
    in_panels = codes.view(panels, PANEL, -1)[:, :, :inputs].transpose(1, 2)
    if quantization == "nf4":
        low, high = in_panels.chunk(2, dim=-1)
        in_panels = low | high << 4
    return in_panels.contiguous(), scales[..., 0].transpose(1, 2).contiguous()


def dequantized(codes: Tensor, scales: Tensor, outputs: int) -> Tensor:
    """(O, I) float32: the numbers that codes and scales stand for."""
    if codes.dtype == torch.int8:
        values = codes.float()
    else:
        table = torch.tensor(_NORMAL_FLOATS, device=codes.device)
        values = table[torch.cat([codes & 15, codes >> 4], dim=-1).int()]
    by_input = scales.repeat_interleave(GROUP, dim=1)[:, : codes.shape[1]]
    return (values * by_input).transpose(1, 2).reshape(-1, codes.shape[1])[:outputs]
