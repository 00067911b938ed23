"""Picking rows of a tensor, with a gradient that has the same bits each time.

PyTorch's own backward pass of `index_select` adds rows with atomic operations on a GPU, in whatever order they arrive,
so a row that was picked more than once gets another rounding in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


def gather_rows(rows_SX: Tensor, index_N: Tensor) -> Tensor:
    """(N, ...): row `index_N[n]` of `rows_SX` (S, ...); differentiable once."""
    picked: Tensor = _GatherRows.apply(rows_SX, index_N)
    return picked


def add_rows(sum_SX: Tensor, index_N: Tensor, rows_NX: Tensor) -> Tensor:
    """`sum_SX` with row n of `rows_NX` added at `index_N[n]`, in place and in a fixed order."""
    with deterministic(sum_SX.device):
        return sum_SX.index_add_(0, index_N, rows_NX)


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Inside, PyTorch takes the deterministic form of operations on `device` that have one (`index_add_`,
    FlashAttention's backward pass). Operations on a CPU always are, so nothing changes there."""
    before = torch.are_deterministic_algorithms_enabled()
    if device.type == "cpu" or before:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Context(FunctionCtx):
    """What the backward pass keeps."""

    saved_tensors: tuple[Tensor, ...]
    shape: torch.Size


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, rows_SX: Tensor, index_N: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(index_N)
        ctx.shape = rows_SX.shape
        return rows_SX.index_select(0, index_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad_NX: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (index_N,) = ctx.saved_tensors
        return add_rows(grad_NX.new_zeros(ctx.shape), index_N, grad_NX), None
