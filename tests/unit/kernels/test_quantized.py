"""Weights of 4 and 8 bits in C next to the same in PyTorch, for each instruction set."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from burnish.forward.quantized_layers import BITS, dequantized, quantized
from burnish.kernels.products import quantized_kernels
from burnish.types import Quantization

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]

KINDS = pytest.mark.parametrize("kind", ["int8", "nf4"])
SHAPES = pytest.mark.parametrize("shape", [(1, 1), (64, 64), (130, 1_100)])


@KINDS
@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers(kind: Quantization, shape: tuple[int, int], dtype: torch.dtype) -> None:
    codes, scales = quantized(torch.randn(shape, generator=torch.Generator().manual_seed(0)), kind)
    found = quantized_kernels(dtype).dequantize(codes, scales, BITS[kind], shape[0])
    assert torch.equal(found, dequantized(codes, scales, shape[0]).to(dtype))


@KINDS
@SHAPES
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.005)])
def test_products(kind: Quantization, shape: tuple[int, int], rows: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    codes, scales = quantized(torch.randn(shape), kind)
    inputs, bias = torch.randn(rows, shape[1]).to(dtype), torch.randn(shape[0]).to(dtype)
    kernels, bits = quantized_kernels(dtype), BITS[kind]
    found = kernels.multiply(inputs, codes, scales, bits, shape[0], bias)
    wanted = linear(inputs.double(), dequantized(codes, scales, shape[0]).to(dtype).double(), bias.double())
    assert (found - wanted).norm() <= tolerance * wanted.norm()
    without = kernels.multiply(inputs, codes, scales, bits, shape[0], None)
    assert (without - (wanted - bias)).norm() <= tolerance * wanted.norm()


def test_products_are_those_of_the_rounded_weights() -> None:
    """1.001 is 1 in bfloat16, which the weight that training passes multiply by is."""
    codes, scales = quantized(torch.tensor([[1.0] * 64 + [1.001] * 64]), "int8")
    inputs = torch.zeros(1, 128, dtype=torch.bfloat16)
    inputs[0, 0], inputs[0, 64] = 1, -1
    assert quantized_kernels(torch.bfloat16).multiply(inputs, codes, scales, 8, 1, None).item() == 0.0


@KINDS
def test_a_row_has_the_same_product_alone(kind: Quantization) -> None:
    torch.manual_seed(0)
    codes, scales = quantized(torch.randn(100, 700), kind)
    inputs, kernels = torch.randn(19, 700), quantized_kernels(torch.float32)
    together = kernels.multiply(inputs, codes, scales, BITS[kind], 100, None)
    for row in range(19):
        alone = kernels.multiply(inputs[row : row + 1], codes, scales, BITS[kind], 100, None)
        assert torch.equal(alone[0], together[row])
