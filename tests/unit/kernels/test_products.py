"""Products with weights in panels, and with weights of 4 and 8 bits, next to the same in float64, for each
instruction set."""

import pytest
import torch
from torch.nn.functional import linear

from burnish.forward.quantized_layers import BITS, dequantized, quantized
from burnish.kernels.products import product_kernels, quantized_kernels
from burnish.types import Quantization

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]

SHAPES = pytest.mark.parametrize("shape", [(1, 1), (32, 512), (13, 48), (100, 1_100)])
"""Panels that are not full, inputs of several chunks, and neither."""


@SHAPES
@pytest.mark.parametrize("rows", [1, 5, 19, 96, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.005)])
def test_products(shape: tuple[int, int], rows: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    weight, bias, inputs = (torch.randn(size).to(dtype) for size in (shape, shape[:1], (rows, shape[1])))
    kernels = product_kernels(dtype)
    panels = kernels.pack(weight)
    found = kernels.multiply(inputs, panels, shape[0], bias)
    wanted = linear(inputs.double(), weight.double(), bias.double())
    assert found.dtype == dtype
    assert (found - wanted).norm() <= tolerance * wanted.norm()
    without = kernels.multiply(inputs, panels, shape[0], None)
    assert (without - (wanted - bias)).norm() <= tolerance * wanted.norm()


def test_a_row_has_the_same_product_alone() -> None:
    torch.manual_seed(0)
    kernels = product_kernels(torch.float32)
    panels, inputs = kernels.pack(torch.randn(100, 1_100)), torch.randn(110, 1_100)
    together = kernels.multiply(inputs, panels, 100, None)
    for first, count in [(0, 1), (3, 2), (50, 7), (90, 20)]:
        alone = kernels.multiply(inputs[first : first + count], panels, 100, None)
        assert torch.equal(alone, together[first : first + count])


def test_the_weight_may_be_a_view_and_rows_as_well() -> None:
    torch.manual_seed(0)
    kernels = product_kernels(torch.float32)
    weight, inputs = torch.randn(40, 9), torch.randn(40, 5)
    found = kernels.multiply(inputs.T, kernels.pack(weight.T), 9, None)
    torch.testing.assert_close(found, inputs.T @ weight)


def test_the_default_type_of_a_program_changes_nothing() -> None:
    """Scratch memory of half the size would be written beyond its end."""
    torch.manual_seed(0)
    kernels = product_kernels(torch.float32)
    weight, inputs = torch.randn(100, 1_100), torch.randn(90, 1_100)
    panels = kernels.pack(weight)
    wanted = kernels.multiply(inputs, panels, 100, None)
    asked: list[int] = []
    empty = torch.empty

    def noting(*sizes: int, **settings: object) -> torch.Tensor:
        memory = empty(*sizes, **settings)
        asked.append(memory.nbytes)
        return memory

    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty", noting)
            found = kernels.multiply(inputs, panels, 100, None)
    finally:
        torch.set_default_dtype(torch.float32)
    assert asked == [4 * 90 * 1_100]
    assert torch.equal(found, wanted)


# Weights of 4 and 8 bits next to the same in PyTorch


KINDS = pytest.mark.parametrize("kind", ["int8", "nf4"])
SIZES = pytest.mark.parametrize("shape", [(1, 1), (64, 64), (130, 1_100)])


@KINDS
@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_of_codes(kind: Quantization, shape: tuple[int, int], dtype: torch.dtype) -> None:
    codes, scales = quantized(torch.randn(shape, generator=torch.Generator().manual_seed(0)), kind)
    found = quantized_kernels(dtype).dequantize(codes, scales, BITS[kind], shape[0])
    assert torch.equal(found, dequantized(codes, scales, shape[0]).to(dtype))


@KINDS
@SIZES
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.005)])
def test_products_with_codes(kind, shape, rows: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    codes, scales = quantized(torch.randn(shape), kind)
    inputs, bias = torch.randn(rows, shape[1]).to(dtype), torch.randn(shape[0]).to(dtype)
    kernels, bits = quantized_kernels(dtype), BITS[kind]
    found = kernels.multiply(inputs, codes, scales, bits, shape[0], bias)
    wanted = linear(inputs.double(), dequantized(codes, scales, shape[0]).to(dtype).double(), bias.double())
    assert (found - wanted).norm() <= tolerance * wanted.norm()
    without = kernels.multiply(inputs, codes, scales, bits, shape[0], None)
    assert (without - (wanted - bias)).norm() <= tolerance * wanted.norm()


def test_products_with_codes_are_those_of_the_rounded_weights() -> None:
    """1.001 is 1 in bfloat16, which the weight that training passes multiply by is."""
    codes, scales = quantized(torch.tensor([[1.0] * 64 + [1.001] * 64]), "int8")
    inputs = torch.zeros(1, 128, dtype=torch.bfloat16)
    inputs[0, 0], inputs[0, 64] = 1, -1
    assert quantized_kernels(torch.bfloat16).multiply(inputs, codes, scales, 8, 1, None).item() == 0.0


@KINDS
def test_a_row_has_the_same_product_with_codes_alone(kind: Quantization) -> None:
    torch.manual_seed(0)
    codes, scales = quantized(torch.randn(100, 700), kind)
    inputs, kernels = torch.randn(19, 700), quantized_kernels(torch.float32)
    together = kernels.multiply(inputs, codes, scales, BITS[kind], 100, None)
    for row in range(19):
        alone = kernels.multiply(inputs[row : row + 1], codes, scales, BITS[kind], 100, None)
        assert torch.equal(alone[0], together[row])
