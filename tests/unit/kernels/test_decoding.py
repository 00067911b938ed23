import pytest
import torch
from torch.nn.functional import silu

from burnish.kernels.decoding import decode_kernels

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SIZES = pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 16), (5, 50), (40, 512)])


@DTYPES
@SIZES
def test_the_norm_is_that_of_the_sum_rounded_as_transformers_does(dtype: torch.dtype, rows: int, size: int) -> None:
    torch.manual_seed(0)
    states, more, weight = (torch.randn(shape).to(dtype) for shape in ((rows, size), (rows, size), (size,)))
    total = states + more
    exact = total.float()
    normed = (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)).to(dtype) * weight
    found = decode_kernels(dtype).add_and_normalise(states, more, weight, 1e-6)
    assert torch.equal(states, total)
    torch.testing.assert_close(found, normed, rtol=1e-6 if dtype == torch.float32 else 0.01, atol=1e-6)
    torch.testing.assert_close(decode_kernels(dtype).add_and_normalise(total, None, weight, 1e-6), found)


@DTYPES
@SIZES
def test_the_gate_is_silu_of_one_half_times_the_other(dtype: torch.dtype, rows: int, size: int) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(rows, 2 * size) * 10).to(dtype)
    inputs[0, :4] = torch.tensor([0.0, 100.0, -100.0, -87.5])
    expected = silu(inputs[:, :size]) * inputs[:, size:]
    rtol = 2e-6 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(decode_kernels(dtype).gate(inputs), expected, rtol=rtol, atol=1e-30)


@DTYPES
def test_what_is_no_number_stays_none(dtype: torch.dtype) -> None:
    kernels = decode_kernels(dtype)
    states = torch.ones(2, 20, dtype=dtype)
    states[0, 18] = torch.nan
    normed = kernels.add_and_normalise(states, None, torch.ones(20, dtype=dtype), 1e-6)
    assert normed[0].isnan().all()
    assert normed[1].isfinite().all()
    gates = torch.ones(1, 40, dtype=dtype)
    gates[0, 3], gates[0, 20 + 19] = torch.nan, torch.nan
    assert kernels.gate(gates).isnan().nonzero()[:, 1].tolist() == [3, 19]


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    """Sums of 1 and 1/256 lie between 1 and 1 + 1/128; the even one of the two is 1, and of the next two the upper."""
    states = torch.tensor([[1.0, 1.0 + 1 / 128, 1.0]], dtype=torch.bfloat16)
    more = torch.tensor([[1 / 256, 1 / 256, 1 / 255]], dtype=torch.bfloat16)
    decode_kernels(torch.bfloat16).add_and_normalise(states, more, torch.ones(3, dtype=torch.bfloat16), 0.0)
    assert states.tolist() == [[1.0, 1.0 + 2 / 128, 1.0 + 1 / 128]]
