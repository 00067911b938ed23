"""The gradient of an embedding, added where it belongs.

PyTorch's backward pass of an embedding makes a whole (vocabulary, hidden) gradient of zeros for a few hundred tokens
and adds it to the one that is there: for 32,000 tokens as much work as a layer, in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel


@contextmanager
def embedding_gradient_in_place(model: PreTrainedModel) -> Iterator[None]:
    """Forward passes inside add the gradient of `model`'s input embedding straight into `weight.grad`, row by row, when
    they are gone through backwards; `torch.autograd.grad` for the weight then sees nothing.

    On a CPU only (elsewhere adding rows is not deterministic), for a plain `nn.Embedding` that trains and has no
    hooks on its weight; other embeddings keep their own backward pass.
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


def _is_plain(embedding: Any) -> bool:
    if type(embedding) is not nn.Embedding:
        return False
    weight = embedding.weight
    ordinary = embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse
    trains = weight.requires_grad and weight.is_leaf and not weight._backward_hooks
    return ordinary and trains and weight.device.type == "cpu"


def _looked_up(embedding: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
    assert isinstance(embedding, nn.Embedding)
    states: Tensor = _InPlace.apply(embedding.weight, arguments[0], output.detach(), embedding.padding_idx)
    return states


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, weight_VH: Tensor, tokens: Tensor, states: Tensor, padding_idx: int | None
    ) -> Tensor:
        ctx.weight = weight_VH  # the very leaf: its .grad is written
        ctx.padding_idx = padding_idx
        ctx.save_for_backward(tokens)
        ctx.mark_dirty(states)  # and so no view, of which models that scale embeddings in place could make nothing
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_states: Tensor) -> tuple[None, ...]:  # type: ignore[override]
        (tokens,) = ctx.saved_tensors
        weight_VH: Tensor = ctx.weight
        rows_N, grad_NH = tokens.flatten(), grad_states.flatten(0, -2)
        if ctx.padding_idx is not None:  # its embedding does not train
            trained = rows_N != ctx.padding_idx
            rows_N, grad_NH = rows_N[trained], grad_NH[trained]
        if weight_VH.grad is None:
            weight_VH.grad = torch.zeros_like(weight_VH, dtype=weight_VH.grad_dtype)
        weight_VH.grad.index_add_(0, rows_N, grad_NH.to(weight_VH.grad.dtype))
        return None, None, None, None
