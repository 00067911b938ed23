"""Attention over a packed row on a CPU: blocks of keys apart, joined by their log-sum-exps.

What a response token sees is its prompt and its own response. The two are computed apart: all responses of a prompt
are queries beside each other for one set of keys, so that the prompt's keys are neither copied nor masked. Joining
softmaxes by log-sum-exp, and the backward pass of a block from the joined output, are those of FlashAttention (Dao et
al. 2022, https://arxiv.org/abs/2205.14135). Shapes: S slots of the packed row, H heads, K key heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.forward.float32 import usual_float32
from burnish.kernels.attention import Stretches

FLOAT32_KEYS = 512
"""Up to so many keys the backward pass of bfloat16 attention is computed in float32: PyTorch's kernel is two to three
times as fast so for a few dozen keys, and level at some hundreds."""


@dataclass(frozen=True, eq=False)
class CausalRows:
    """Stretches of tokens, each seeing itself causally.

    slots_NQ (N, Q) int64: their slots, right-padded with any; real_M (M,) int64: which of the N x Q places are no
    padding.
    """

    slots_NQ: Tensor
    real_M: Tensor

    @cached_property
    def targets_M(self) -> Tensor:
        """The slots of `real_M`."""
        return self.slots_NQ.flatten()[self.real_M]

    @property
    def is_full(self) -> bool:
        """Without any padding."""
        return self.real_M.numel() == self.slots_NQ.numel()


@dataclass(frozen=True, slots=True, eq=False)
class SharedKeys:
    """The tokens in slots `queries` all see all tokens in slots `keys`."""

    queries: slice
    keys: slice


@dataclass(frozen=True, slots=True, eq=False)
class MergedAttention:
    """Every slot is in exactly one row of `causal`, and in the queries of at most one of `shared`; `stretches` says the
    same once more."""

    causal: tuple[CausalRows, ...]
    shared: tuple[SharedKeys, ...]
    stretches: Stretches


def merged_attention(
    query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, layout: MergedAttention, scaling: float | None
) -> Tensor:
    """(S, H, D); differentiable once. `scaling` None is 1 / sqrt(D)."""
    output_SHD: Tensor = _MergedAttention.apply(query_SHD, key_SKD, value_SKD, layout, scaling)
    return output_SHD


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: MergedAttention, scaling: float | None
    ) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        sums_SH = output.new_empty(output.shape[:2], dtype=_sum_type(query.dtype))
        for rows in layout.causal:
            part, sums = _attend(_rows(query, rows), _rows(key, rows), _rows(value, rows), scaling, is_causal=True)
            output.index_copy_(0, rows.targets_M, _real(part, rows))
            sums_SH.index_copy_(0, rows.targets_M, _real(sums, rows))
        for block in layout.shared:
            part, sums = _attend(
                _stretch(query, block.queries), _stretch(key, block.keys), _stretch(value, block.keys), scaling
            )
            _join(output[block.queries], sums_SH[block.queries], part[0].transpose(0, 1), sums[0].T)
        ctx.save_for_backward(query, key, value, output, sums_SH)
        ctx.layout, ctx.scaling = layout, scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SHD: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, sums_SH = ctx.saved_tensors
        grads = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value))
        for rows in ctx.layout.causal:
            parts = _attend_backward(
                _real_rows(grad_SHD, rows),
                _rows(query, rows),
                _rows(key, rows),
                _rows(value, rows),
                _rows(output, rows),
                sums_SH[rows.slots_NQ].transpose(1, 2),
                ctx.scaling,
                is_causal=True,
            )
            for grad, part in zip(grads, parts, strict=True):
                grad.index_copy_(0, rows.targets_M, _real(part, rows).to(grad.dtype))
        for block in ctx.layout.shared:
            parts = _attend_backward(
                _stretch(grad_SHD, block.queries),
                _stretch(query, block.queries),
                _stretch(key, block.keys),
                _stretch(value, block.keys),
                _stretch(output, block.queries),
                sums_SH[block.queries].T[None],
                ctx.scaling,
            )
            for grad, slots, part in zip(grads, (block.queries, block.keys, block.keys), parts, strict=True):
                grad[slots] += part[0].transpose(0, 1)
        return *grads, None, None


def _join(output: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> None:
    """Take further keys into a softmax-weighted mean, in place: (Q, H, D) means and (Q, H) log-sum-exps of their
    scores."""
    joined = torch.logaddexp(sums, more_sums)
    own, other = ((part - joined).exp()[..., None].to(output.dtype) for part in (sums, more_sums))
    output.mul_(own).addcmul_(more, other)
    sums.copy_(joined)


def _rows(tensor_SXD: Tensor, rows: CausalRows) -> Tensor:
    """(N, X, Q, D): the rows' slots."""
    picked = tensor_SXD.index_select(0, rows.slots_NQ.flatten())
    return picked.view(*rows.slots_NQ.shape, *tensor_SXD.shape[1:]).transpose(1, 2)


def _real(part_NXQ: Tensor, rows: CausalRows) -> Tensor:
    """(M, X, ...): what stands at the real places of (N, X, Q, ...)."""
    flat = part_NXQ.transpose(1, 2).flatten(0, 1)
    return flat if rows.is_full else flat[rows.real_M]


def _real_rows(grad_SHD: Tensor, rows: CausalRows) -> Tensor:
    """`_rows` with 0 in padding, which then gives nothing back."""
    if rows.is_full:
        return _rows(grad_SHD, rows)
    flat = grad_SHD.new_zeros(rows.slots_NQ.numel(), *grad_SHD.shape[1:])
    flat[rows.real_M] = grad_SHD[rows.targets_M]
    return flat.view(*rows.slots_NQ.shape, *grad_SHD.shape[1:]).transpose(1, 2)


def _stretch(tensor_SXD: Tensor, slots: slice) -> Tensor:
    """(1, X, Q, D), nothing copied."""
    return tensor_SXD[slots].transpose(0, 1)[None]


@usual_float32()
def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, *, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(output (N, H, Q, D), log-sum-exp of the scaled scores (N, H, Q)); query heads share key heads in equal parts."""
    output, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=is_causal, scale=scaling
    )
    return output, sums


@usual_float32()
def _attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    scaling: float | None,
    *,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, given `output` and `sums` over all keys, those of other blocks included;
    float32 where that was the faster way to them."""
    if query.dtype == torch.bfloat16 and key.shape[2] <= FLOAT32_KEYS:
        grad, query, key, value, output = (tensor.float() for tensor in (grad, query, key, value, output))
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, sums, 0.0, is_causal, scale=scaling
    )
    return grads


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
