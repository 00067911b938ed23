"""The gradient of an embedding, added where it belongs.

PyTorch's backward pass of an embedding builds a whole (vocabulary, hidden) gradient, mostly zeros, for a few hundred
tokens and adds it to the existing one. For a vocabulary of 32,000 that is as much work as a layer, in every
micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from burnish.forward.gathering import add_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def embedding_gradient_in_place(model: PreTrainedModel) -> Iterator[None]:
    """Forward passes inside add the gradient of `model`'s input embedding straight into `weight.grad`, row by row, when
    they are gone through backwards; `torch.autograd.grad` for the weight then sees nothing.

    For a plain `nn.Embedding` that trains and has no hooks on its weight; other embeddings keep their own backward
    pass.
    """
    embedding = model.get_input_embeddings()
    if not (torch.is_grad_enabled() and _is_plain(embedding)):
        yield
        return
    handle = embedding.register_forward_hook(_looked_up)
    try:
        yield
    finally:
        handle.remove()


def _is_plain(embedding: nn.Module) -> bool:
    if type(embedding) is not nn.Embedding:
        return False
    weight = embedding.weight
    ordinary = embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse
    trains = weight.requires_grad and weight.is_leaf and not weight._backward_hooks
    return bool(ordinary and trains)


def _looked_up(embedding: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
    assert isinstance(embedding, nn.Embedding)
    states: Tensor = _InPlace.apply(embedding.weight, arguments[0], output.detach(), embedding.padding_idx)
    return states


class _Context(FunctionCtx):
    """What the backward pass keeps: the very leaf, whose `.grad` it writes."""

    saved_tensors: tuple[Tensor, ...]
    weight: Tensor
    padding_idx: int | None


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _Context, weight_VH: Tensor, tokens: Tensor, states: Tensor, padding_idx: int | None
    ) -> Tensor:
        ctx.weight = weight_VH
        ctx.padding_idx = padding_idx
        ctx.save_for_backward(tokens)
        ctx.mark_dirty(states)  # and so no view, of which models that scale embeddings in place could make nothing
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad_states: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        (tokens,) = ctx.saved_tensors
        weight_VH = ctx.weight
        rows_N, grad_NH = tokens.flatten(), grad_states.flatten(0, -2)
        if ctx.padding_idx is not None:  # its embedding does not train
            grad_NH = grad_NH.masked_fill((rows_N == ctx.padding_idx)[:, None], 0.0)
        if weight_VH.grad is None:
            weight_VH.grad = torch.zeros_like(weight_VH, dtype=weight_VH.grad_dtype)
        add_rows(weight_VH.grad, rows_N, grad_NH.to(weight_VH.grad.dtype))
        return None, None, None, None
