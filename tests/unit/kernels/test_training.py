from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from burnish.kernels.training import train_kernels

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("instruction_set")]

DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.01)])
SIZES = pytest.mark.parametrize(("rows", "size"), [(1, 8), (3, 18), (7, 64), (70, 512)])


Run = Callable[..., Sequence[Tensor]]


def compare(kernel: Run, exact: Run, inputs: Sequence[Tensor], tolerance: float) -> None:
    """Outputs, and gradients of every input for random gradients of the outputs."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    exact_leaves = [tensor.double().requires_grad_() for tensor in inputs]
    found, wanted = kernel(*leaves), exact(*exact_leaves)
    outer = [torch.randn_like(output) for output in found]
    grads = torch.autograd.grad(found, leaves, outer)
    exact_grads = torch.autograd.grad(wanted, exact_leaves, [grad.double() for grad in outer])
    for one, other in zip((*found, *grads), (*wanted, *exact_grads), strict=True):
        assert (one.double() - other).norm() <= tolerance * other.norm()


def norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + epsilon) * weight


@DTYPES
@SIZES
@pytest.mark.parametrize("has_more", [True, False])
def test_norm_of_a_sum(rows: int, size: int, dtype: torch.dtype, tolerance: float, has_more: bool) -> None:
    torch.manual_seed(0)
    states, more = torch.randn(2, rows, size).to(dtype)
    weight = torch.randn(size).to(dtype)

    def kernel(states: Tensor, weight: Tensor, more: Tensor | None = None) -> Sequence[Tensor]:
        return train_kernels(dtype).normalise(states, more, weight, 1e-2)

    def exact(states: Tensor, weight: Tensor, more: Tensor | None = None) -> Sequence[Tensor]:
        total = states if more is None else states + more
        return total, norm(total, weight, 1e-2)

    compare(kernel, exact, (states, weight, more) if has_more else (states, weight), tolerance)


@pytest.mark.parametrize("used", [0, 1])
def test_only_one_of_the_norms_outputs_is_used(used: int) -> None:
    torch.manual_seed(0)
    states, more = torch.randn(2, 3, 20)
    weight = torch.randn(20)

    def exact(states: Tensor, more: Tensor) -> Sequence[Tensor]:
        return [(states + more, norm(states + more, weight.double(), 1e-6))[used]]

    def kernel(states: Tensor, more: Tensor) -> Sequence[Tensor]:
        return [train_kernels(torch.float32).normalise(states, more, weight, 1e-6)[used]]

    compare(kernel, exact, (states, more), 2e-6)


def test_frozen_norms_get_no_gradient() -> None:
    states, weight = torch.randn(2, 8, requires_grad=True), torch.randn(8)
    train_kernels(torch.float32).normalise(states, None, weight, 1e-6)[1].sum().backward()
    assert states.grad is not None
    assert weight.grad is None


@DTYPES
@pytest.mark.parametrize(("rows", "heads", "size"), [(1, 1, 8), (5, 3, 18), (40, 8, 64)])
def test_rotation(rows: int, heads: int, size: int, dtype: torch.dtype, tolerance: float) -> None:
    """The four quarters of cosine and sine differ here, though they do not in use."""
    torch.manual_seed(0)
    cosine, sine = torch.randn(2, rows, size)

    def exact(states: Tensor) -> Sequence[Tensor]:
        first, second = states.chunk(2, dim=-1)
        return [states * cosine.double()[:, None] + torch.cat([-second, first], dim=-1) * sine.double()[:, None]]

    states, kernels = torch.randn(rows, heads, size).to(dtype), train_kernels(dtype)
    compare(lambda states: [kernels.rotate(states, cosine, sine)], exact, [states], tolerance)


@DTYPES
@SIZES
def test_gate(rows: int, size: int, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, rows, size) * 5).to(dtype)
    inputs[0, 0, :4] = torch.tensor([0.0, 100.0, -100.0, -87.5])
    kernels = train_kernels(dtype)
    compare(lambda *both: [kernels.gate(*both)], lambda gate, up: [silu(gate) * up], tuple(inputs), tolerance)


def test_inputs_need_not_be_contiguous() -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(6, 4).T, torch.randn(4, 12)[:, ::2]
    compare(lambda *both: [train_kernels(torch.float32).gate(*both)], lambda a, b: [silu(a) * b], (gate, up), 2e-6)
