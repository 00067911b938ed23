"""Attention over a packed row on a CPU: blocks of keys separately, joined by their log-sum-exps.

A response token sees its prompt and its own response. The two are computed separately: all responses of a prompt are
queries next to each other for one set of keys, so that the prompt's keys are neither copied nor masked.
Joining softmaxes by log-sum-exp, and the backward pass of a block from the joined output, are as in FlashAttention
(Dao et al. 2022, https://arxiv.org/abs/2205.14135). Shapes: S slots of the packed row, H heads, K key heads, D head
size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from burnish.forward.batch import Ints
from burnish.forward.logprobs import reduction_dtype
from burnish.forward.packing import Packing, bunches
from burnish.kernels.attention import SequenceGroups
from burnish.machine.matmul_precision import usual_float32

FLOAT32_KEYS = 512
"""Up to this many keys the backward pass of bfloat16 attention is computed in float32: PyTorch's kernel is then two to
three times as fast for a few dozen keys, and as fast at some hundreds."""
SPREAD = 1.25
"""Sequences whose lengths differ by up to this factor are padded to the longest of them and attend together."""


@dataclass(frozen=True, eq=False)
class PaddedSequences:
    """Sequences that each attend causally to themselves, padded to one length.

    slots_NQ (N, Q) int64: their slots, padded on the right with any; real_M (M,) int64: which of the N x Q places are
    not padding.
    """

    slots_NQ: Tensor
    real_M: Tensor

    @staticmethod
    def of(sequences: Sequence[Ints]) -> PaddedSequences:
        """From the slots of each."""
        lengths = np.array([len(slots) for slots in sequences])
        is_real = np.arange(lengths.max()) < lengths[:, None]
        slots_NQ = np.zeros(is_real.shape, dtype=np.int64)
        slots_NQ[is_real] = np.concatenate(sequences)
        return PaddedSequences(torch.from_numpy(slots_NQ), torch.from_numpy(np.flatnonzero(is_real)))

    @cached_property
    def targets_M(self) -> Tensor:
        """The slots of `real_M`."""
        return self.slots_NQ.flatten()[self.real_M]

    @property
    def is_full(self) -> bool:
        """Without any padding."""
        return self.real_M.numel() == self.slots_NQ.numel()


@dataclass(frozen=True, eq=False)
class MergedAttention:
    """A way to attend in a packed row on a CPU (`burnish.forward.attention.PackedAttention`).

    A prompt with several rows is one causal sequence, and so is each response, which sees the prompt's keys as well. A
    row that shares its prompt with no other is a single sequence, prompt and response.
    """

    packing: Packing

    @cached_property
    def sequences(self) -> list[list[Ints]]:
        """Slots of each sequence, grouped by prompt with the prompt first; padding is a group by itself."""
        responses = self.packing.response_spans()
        found = []
        for group, prompt in zip(self.packing.groups, self.packing.prompt_spans(), strict=True):
            together = [_slots(span) for span in (prompt, *(responses[row] for row in group))]
            found.append([np.concatenate(together)] if len(group) == 1 else together)
        if self.packing.padding:
            found.append([_slots(self.packing.padding_span)])
        return found

    @cached_property
    def causal(self) -> tuple[PaddedSequences, ...]:
        """Sequences that attend causally to themselves; every slot is in exactly one."""
        sequences = [slots for group in self.sequences for slots in group]
        found = bunches([len(slots) for slots in sequences], SPREAD)
        return tuple(PaddedSequences.of([sequences[number] for number in bunch]) for bunch in found)

    @cached_property
    def shared(self) -> list[tuple[slice, slice]]:
        """(queries, keys) of each prompt that several rows share: all of these queries see all of these keys."""
        spans = zip(self.packing.groups, self.packing.answer_spans(), self.packing.prompt_spans(), strict=True)
        return [(queries, keys) for group, queries, keys in spans if len(group) > 1 and queries.stop > queries.start]

    @cached_property
    def kernel_groups(self) -> SequenceGroups:
        """`sequences` as kernels in C take them."""
        return SequenceGroups.of([[torch.from_numpy(slots) for slots in group] for group in self.sequences])

    def attend(self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, scaling: float | None) -> Tensor:
        """(S, H, D); differentiable once. `scaling` None is 1 / sqrt(D)."""
        return _MergedAttention.apply(query_SHD, key_SKD, value_SKD, self, scaling)


def _slots(span: slice) -> Ints:
    return np.arange(span.start, span.stop)


class _Context(FunctionCtx):
    """Tensors kept for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    layout: MergedAttention
    scaling: float | None


class _MergedAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _Context, query: Tensor, key: Tensor, value: Tensor, layout: MergedAttention, scaling: float | None
    ) -> Tensor:
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        sums_SH = output.new_empty(output.shape[:2], dtype=reduction_dtype(query))
        for rows in layout.causal:
            part, sums = _attend(_rows(query, rows), _rows(key, rows), _rows(value, rows), scaling, is_causal=True)
            output.index_copy_(0, rows.targets_M, _real(part, rows))
            sums_SH.index_copy_(0, rows.targets_M, _real(sums, rows))
        for queries, keys in layout.shared:
            part, sums = _attend(_span(query, queries), _span(key, keys), _span(value, keys), scaling)
            join(output[queries], sums_SH[queries], part[0].transpose(0, 1), sums[0].T)
        ctx.save_for_backward(query, key, value, output, sums_SH)
        ctx.layout, ctx.scaling = layout, scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad_SHD: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, output, sums_SH = ctx.saved_tensors
        layout, scaling = ctx.layout, ctx.scaling
        grads = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value))
        for rows in layout.causal:
            parts = _attend_backward(
                _real_rows(grad_SHD, rows, padding=0.0),
                _rows(query, rows),
                _rows(key, rows),
                _rows(value, rows),
                _rows(output, rows),
                _real_rows(sums_SH, rows, padding=math.inf),
                scaling,
                is_causal=True,
            )
            for grad, part in zip(grads, parts, strict=True):
                grad.index_copy_(0, rows.targets_M, _real(part, rows).to(grad.dtype))
        for queries, keys in layout.shared:
            parts = _attend_backward(
                _span(grad_SHD, queries),
                _span(query, queries),
                _span(key, keys),
                _span(value, keys),
                _span(output, queries),
                sums_SH[queries].T[None],
                scaling,
            )
            for grad, slots, part in zip(grads, (queries, keys, keys), parts, strict=True):
                grad[slots] += part[0].transpose(0, 1)
        return *grads, None, None


def join(output: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> None:
    """Take further keys into a softmax-weighted mean, in place: (Q, H, D) means and (Q, H) log-sum-exps of their
    scores."""
    joined = torch.logaddexp(sums, more_sums)
    own, other = ((part - joined).exp()[..., None].to(output.dtype) for part in (sums, more_sums))
    output.mul_(own).addcmul_(more, other)
    sums.copy_(joined)


def _rows(tensor_SXD: Tensor, rows: PaddedSequences) -> Tensor:
    """(N, X, Q, D): the rows' slots."""
    picked = tensor_SXD.index_select(0, rows.slots_NQ.flatten())
    return picked.view(*rows.slots_NQ.shape, *tensor_SXD.shape[1:]).transpose(1, 2)


def _real(part_NXQ: Tensor, rows: PaddedSequences) -> Tensor:
    """(M, X, ...): the values of (N, X, Q, ...) that are not padding."""
    flat = part_NXQ.transpose(1, 2).flatten(0, 1)
    return flat if rows.is_full else flat[rows.real_M]


def _real_rows(tensor_SX: Tensor, rows: PaddedSequences, *, padding: float) -> Tensor:
    """(N, X, Q, ...): `_rows` with this number in padding. A gradient of 0 and a log-sum-exp of infinity, which makes
    all weights 0, give nothing back; with another sequence's log-sum-exp weights could overflow."""
    if rows.is_full:
        return _rows(tensor_SX, rows)
    flat = tensor_SX.new_full((rows.slots_NQ.numel(), *tensor_SX.shape[1:]), padding)
    flat[rows.real_M] = tensor_SX[rows.targets_M]
    return flat.view(*rows.slots_NQ.shape, *tensor_SX.shape[1:]).transpose(1, 2)


def _span(tensor_SXD: Tensor, slots: slice) -> Tensor:
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
    """Gradients of query, key and value, given `output` and `sums` over all keys, other blocks included; in float32
    where that was the faster way to compute them."""
    if query.dtype == torch.bfloat16 and key.shape[2] <= FLOAT32_KEYS:
        grad, query, key, value, output = (tensor.float() for tensor in (grad, query, key, value, output))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad, query, key, value, output, sums, 0.0, is_causal, scale=scaling
    )
