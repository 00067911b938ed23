"""Python functions for the kernels in quantized.c, whose first comment has the layout of codes and scales.

Shapes: O outputs, I inputs, R rows.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from burnish.kernels.build import ADDRESS, COUNT, Kernels

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
