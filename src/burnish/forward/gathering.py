"""Picking rows of a tensor, with a gradient that has the same bits each time.

PyTorch's own backward pass of `index_select` adds rows with atomic operations on a GPU, in whatever order they arrive,
so a row that was picked more than once is rounded differently in every run. The backward pass of an embedding builds a
whole (vocabulary, hidden) gradient, mostly zeros, for a few hundred tokens and adds it to the existing one. For a
vocabulary of 32,000 this is as much work as a layer, in every micro-batch; here only the rows used are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from burnish.types import PreTrainedModel


def gather_rows(rows_SX: Tensor, index_N: Tensor) -> Tensor:
    """(N, ...): row `index_N[n]` of `rows_SX` (S, ...); differentiable once."""
    return _GatherRows.apply(rows_SX, index_N)


def add_rows(sum_SX: Tensor, index_N: Tensor, rows_NX: Tensor) -> Tensor:
    """`sum_SX` with row n of `rows_NX` added at `index_N[n]`, in place and in a fixed order."""
    with deterministic(sum_SX.device):
        return sum_SX.index_add_(0, index_N, rows_NX)


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Inside, PyTorch takes the deterministic form of operations on `device` that have one (`index_add_`,
    FlashAttention's backward pass). Operations on a CPU always are, and Apple's GPUs have no such forms, so nothing
    changes there."""
    before = torch.are_deterministic_algorithms_enabled()
    if device.type in ("cpu", "mps") or before:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Context(FunctionCtx):
    """Tensors kept for the backward pass."""

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


def embedding_gradient_in_place(model: PreTrainedModel) -> AbstractContextManager[object]:
    """Forward passes inside add the gradient of `model`'s input embedding straight into `weight.grad`, row by row, when
    their backward pass runs; `torch.autograd.grad` for the weight then sees nothing.

    For a plain `nn.Embedding` that trains and has no hooks on its weight; other embeddings keep their own backward
    pass.
    """
    embedding = model.get_input_embeddings()
    if torch.is_grad_enabled() and _is_plain(embedding):
        return embedding.register_forward_hook(_looked_up)
    return nullcontext()


def _is_plain(embedding: nn.Module) -> bool:
    if type(embedding) is not nn.Embedding:
        return False
    weight = embedding.weight
    ordinary = embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse
    trains = weight.requires_grad and weight.is_leaf and not weight._backward_hooks
    return bool(ordinary and trains)


def _looked_up(embedding: nn.Embedding, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return _EmbeddingGradient.apply(embedding.weight, arguments[0], output.detach(), embedding.padding_idx)


class _EmbeddingContext(FunctionCtx):
    """Tensors kept for the backward pass; `weight` is the leaf itself, whose `.grad` the pass writes."""

    saved_tensors: tuple[Tensor, ...]
    weight: Tensor
    padding_idx: int | None


class _EmbeddingGradient(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _EmbeddingContext, weight_VH: Tensor, tokens: Tensor, states: Tensor, padding_idx: int | None
    ) -> Tensor:
        ctx.weight = weight_VH
        ctx.padding_idx = padding_idx
        ctx.save_for_backward(tokens)
        ctx.mark_dirty(states)  # and so no view, of which models that scale embeddings in place could make nothing
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: _EmbeddingContext, grad_states: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        (tokens,) = ctx.saved_tensors
        weight_VH = ctx.weight
        rows_N, grad_NH = tokens.flatten(), grad_states.flatten(0, -2)
        if ctx.padding_idx is not None:  # its embedding does not train
            grad_NH = grad_NH.masked_fill((rows_N == ctx.padding_idx)[:, None], 0.0)
        if weight_VH.grad is None:
            weight_VH.grad = torch.zeros_like(weight_VH, dtype=weight_VH.grad_dtype)
        add_rows(weight_VH.grad, rows_N, grad_NH.to(weight_VH.grad.dtype))
        return None, None, None, None
