"""Python functions for the kernels in attend.c: attention of packed rows, with its gradient.

Shapes: S slots of the packed row, H query heads, K key heads, D head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.kernels.build import ADDRESS, COUNT, Kernels
from burnish.kernels.decoding import rounded_up

_TILE = 32
"""Same as in attend.c."""


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroups:
    """Visibility of slots in attention. The slots of a sequence attend to each other causally.

    Sequences form groups. If a group's `shares` is 1, its first sequence is a prompt that its other sequences see in
    full.

    slots_S (S,): the slots of all sequences, concatenated. starts (sequences + 1,): where each sequence begins in them.
    group_starts (groups + 1,): index of each group's first sequence. shares (groups,). All int64. most_columns: the
    largest number of tokens that a query may see, with each sequence rounded up to whole blocks.
    """

    slots_S: Tensor
    starts: Tensor
    group_starts: Tensor
    shares: Tensor
    most_columns: int

    @staticmethod
    def of(groups: Sequence[Sequence[Tensor]]) -> SequenceGroups:
        """Combine groups of a single sequence, or of a shared sequence followed by others."""
        sequences = [sequence for group in groups for sequence in group]
        counts = [len(sequence) for sequence in sequences]
        return SequenceGroups(
            torch.cat(sequences),
            torch.tensor([0, *counts]).cumsum(0),
            torch.tensor([0, *(len(group) for group in groups)]).cumsum(0),
            torch.tensor([int(len(group) > 1) for group in groups]),
            max(
                rounded_up(len(group[0])) + max((rounded_up(len(sequence)) for sequence in group[1:]), default=0)
                for group in groups
            ),
        )


class _Attention(ctypes.Structure):
    """`struct attention` of attend.c."""

    _fields_ = (
        *((name, COUNT) for name in ("groups", "heads", "key_heads", "size", "width", "threads", "scratch_size")),
        ("tokens", COUNT),
        *((name, ADDRESS) for name in ("slots", "starts", "group_starts", "shares", "scratch")),
        ("scaling", ctypes.c_float),
    )


class AttentionKernels(Kernels):
    """Attention, differentiable once. Tensors must have the kernels' dtype, but need not be contiguous."""

    SOURCE = "attend.c"
    TYPES: ClassVar = {
        "attend_forward": [ctypes.POINTER(_Attention), *[ADDRESS] * 5],
        "attend_backward": [ctypes.POINTER(_Attention), *[ADDRESS] * 9],
    }

    def attend(
        self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, groups: SequenceGroups, scaling: float
    ) -> Tensor:
        """(S, H, D), the attention output. Each key head serves an equal number of query heads."""
        return _Attend.apply(query_SHD, key_SKD, value_SKD, groups, scaling, self)

    def check_shapes(self, query: Tensor, key: Tensor, value: Tensor, groups: SequenceGroups) -> None:
        """Raise ValueError for shapes that the C code would misread."""
        slots, heads, size = query.shape
        fits = key.shape == value.shape == (slots, key.shape[1], size) and heads % key.shape[1] == 0
        if not fits or len(groups.slots_S) != slots:
            raise ValueError("the shapes of queries, keys, values and slots do not match")


attention_kernels = cache(AttentionKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""


def _arguments(
    query: Tensor, key: Tensor, groups: SequenceGroups, scaling: float, *, matrices: int
) -> tuple[_Attention, Tensor]:
    """Pack the arguments for attend.c. Also returns the scratch memory that they point to, which the caller must keep.

    Each thread needs `matrices` matrices (keys, values and their gradients) for a shared sequence and one that sees it,
    and space for a tile of queries.
    """
    width, columns = rounded_up(query.shape[2]), groups.most_columns
    threads = torch.get_num_threads()  # not fewer, because OpenMP would end the others and start them again later
    size = matrices * columns * width + 4 * _TILE * width + 2 * _TILE * columns
    scratch = torch.empty(threads * size, dtype=torch.float32)
    return _Attention(
        groups=len(groups.shares),
        heads=query.shape[1],
        key_heads=key.shape[1],
        size=query.shape[2],
        width=width,
        threads=threads,
        scratch_size=size,
        tokens=query.shape[0],
        slots=groups.slots_S.data_ptr(),
        starts=groups.starts.data_ptr(),
        group_starts=groups.group_starts.data_ptr(),
        shares=groups.shares.data_ptr(),
        scratch=scratch.data_ptr(),
        scaling=scaling,
    ), scratch


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        groups: SequenceGroups,
        scaling: float,
        kernels: AttentionKernels,
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        kernels.check_shapes(query, key, value, groups)
        kernels.check(query, key, value)
        # The log-sum-exp of each query's scores is in float32.
        output, sums_SH = torch.empty_like(query), torch.empty(query.shape[:2], dtype=torch.float32)
        about, _held = _arguments(query, key, groups, scaling, matrices=3)
        kernels.call("attend_forward", ctypes.byref(about), query, key, value, output, sums_SH)
        ctx.save_for_backward(query, key, value, output, sums_SH)
        ctx.groups, ctx.scaling, ctx.kernels = groups, scaling, kernels
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved = ctx.saved_tensors  # which checkpointed layers can give only once
        query, key = saved[:2]
        grad, grad_query = grad.contiguous(), torch.empty_like(query)
        grad_key, grad_value = (torch.empty(query.shape, dtype=torch.float32) for _ in range(2))
        about, _held = _arguments(query, key, ctx.groups, ctx.scaling, matrices=6)
        tensors = (*saved, grad, grad_query, grad_key, grad_value)
        ctx.kernels.call("attend_backward", ctypes.byref(about), *tensors)
        # Each query head has its own part of these gradients, to avoid races between threads; here they are added up.
        grad_key, grad_value = (
            part.unflatten(1, (key.shape[1], -1)).sum(2).to(key.dtype) for part in (grad_key, grad_value)
        )
        return grad_query, grad_key, grad_value, None, None, None
