"""Python functions for the kernels in products.c and quantized.c, whose first comments have the layouts of weights.

Shapes: O outputs, I inputs, R rows, P panels.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from burnish.kernels.build import ADDRESS, COUNT, Kernels

_TOGETHER = 96
"""Same as in products.c: number of rows for which a matrix is read once."""


class ProductKernels(Kernels):
    """Kernels for tensors of `dtype` on the CPU. To keep the token loop fast, arguments are not checked."""

    SOURCE = "products.c"
    TYPES: ClassVar = {
        "pack": [ADDRESS, ADDRESS, COUNT, COUNT, COUNT],
        "multiply": [*[ADDRESS] * 4, *[COUNT] * 3, ADDRESS, COUNT],
    }

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.library.panel_outputs.restype = COUNT
        self._panel = self.library.panel_outputs()

    def pack(self, weight_OI: Tensor) -> Tensor:
        """(P, I, outputs of a panel): the weight as `multiply` reads it. Its last panel is filled up with zeros."""
        outputs, inputs = weight_OI.shape
        weight_OI = weight_OI.contiguous()
        panels = weight_OI.new_empty(-(-outputs // self._panel), inputs, self._panel)
        self.call("pack", weight_OI, panels, outputs, inputs, torch.get_num_threads())
        return panels

    def multiply(self, inputs_RI: Tensor, panels: Tensor, outputs: int, bias_O: Tensor | None) -> Tensor:
        """(R, O): the rows times the weight's transpose, plus the bias. A row's result does not depend on others."""
        inputs_RI = inputs_RI.contiguous()
        rows, inputs = inputs_RI.shape
        found_RO = inputs_RI.new_empty(rows, outputs)
        scratch = torch.empty(min(rows, _TOGETHER) * inputs, dtype=torch.float32, device="cpu")
        tensors, threads = (inputs_RI, panels, bias_O, found_RO), torch.get_num_threads()
        self.call("multiply", *tensors, rows, outputs, inputs, scratch, threads)
        return found_RO


product_kernels = cache(ProductKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""


PANEL, GROUP = 64, 64
"""Same as in quantized.c: number of outputs stored together, and of inputs that share a scale."""
_CHUNK = 512


class _Quantized(ctypes.Structure):
    """`struct quantized`."""

    _fields_ = (*((name, COUNT) for name in ("outputs", "inputs", "bits")), ("codes", ADDRESS), ("scales", ADDRESS))


class QuantizedKernels(Kernels):
    """Kernels for contiguous tensors on the CPU, and for states and weights of `dtype`. Arguments are not checked."""

    SOURCE = "quantized.c"
    TYPES: ClassVar = {
        "dequantize": [ctypes.POINTER(_Quantized), ADDRESS, COUNT],
        "multiply": [ctypes.POINTER(_Quantized), *[ADDRESS] * 3, COUNT, ADDRESS, COUNT],
    }

    def dequantize(self, codes: Tensor, scales: Tensor, bits: int, outputs: int) -> Tensor:
        """(O, I): the dequantized weight."""
        weight = _weight(codes, scales, bits, outputs)
        weight_OI = torch.empty(outputs, weight.inputs, dtype=self.dtype, device="cpu")
        self.call("dequantize", ctypes.byref(weight), weight_OI, torch.get_num_threads())
        return weight_OI

    def multiply(
        self, inputs_RI: Tensor, codes: Tensor, scales: Tensor, bits: int, outputs: int, bias_O: Tensor | None
    ) -> Tensor:
        """(R, O): the rows times the weight's transpose, plus the bias. A row's result does not depend on others."""
        weight = _weight(codes, scales, bits, outputs)
        lines_RI, rows, threads = inputs_RI.float().contiguous(), len(inputs_RI), torch.get_num_threads()
        found_RO = inputs_RI.new_empty(rows, outputs)
        scratch = torch.empty(threads * PANEL * (_CHUNK + rows), dtype=torch.float32, device="cpu")
        self.call("multiply", ctypes.byref(weight), lines_RI, bias_O, found_RO, rows, scratch, threads)
        return found_RO


def _weight(codes: Tensor, scales: Tensor, bits: int, outputs: int) -> _Quantized:
    return _Quantized(outputs, codes.shape[1], bits, codes.data_ptr(), scales.data_ptr())


quantized_kernels = cache(QuantizedKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""
