"""The functions of attend.c, for tensors: attention of packed rows, with its gradient.

Shapes: S slots of the packed row, H heads, K key heads, D head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.kernels.build import load_library
from burnish.kernels.decoding import rounded_up

_TILE = 16
"""As in attend.c."""
_ADDRESS = ctypes.c_void_p
_COUNT = ctypes.c_int64


@dataclass(frozen=True, slots=True, eq=False)
class SequenceGroups:
    """Which slots see which: those of a sequence each other causally, and where `shares` is 1 all sequences of a
    group its first one as well.

    slots_S (S,): the sequences' slots, one after the other; starts (sequences + 1,) where each begins there;
    group_starts (groups + 1,): each group's first sequence; shares (groups,). All int64. `most_columns`: tokens that
    one query may see, rounded up to whole blocks for each sequence.
    """

    slots_S: Tensor
    starts: Tensor
    group_starts: Tensor
    shares: Tensor
    most_columns: int

    @staticmethod
    def of(groups: Sequence[Sequence[Tensor]]) -> SequenceGroups:
        """Groups of one sequence each, or of a shared one and others."""
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
        *((name, _COUNT) for name in ("groups", "heads", "key_heads", "size", "width", "threads", "scratch_size")),
        ("tokens", _COUNT),
        *((name, _ADDRESS) for name in ("slots", "starts", "group_starts", "shares", "scratch")),
        ("scaling", ctypes.c_float),
    )


class AttentionKernels:
    """Differentiable once; contiguous or not, tensors are of the kernels' type."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Raises KernelError where they cannot be built."""
        library = load_library("attend.c", dtype)
        self._dtype = dtype
        self._forward, self._backward = library.attend_forward, library.attend_backward
        self._forward.argtypes = [ctypes.POINTER(_Attention), *[_ADDRESS] * 5]
        self._backward.argtypes = [ctypes.POINTER(_Attention), *[_ADDRESS] * 9]
        self._forward.restype = self._backward.restype = None

    def attend(
        self, query_SHD: Tensor, key_SKD: Tensor, value_SKD: Tensor, groups: SequenceGroups, scaling: float
    ) -> Tensor:
        """(S, H, D); query heads share key heads in equal parts."""
        output_SHD: Tensor = _Attend.apply(query_SHD, key_SKD, value_SKD, groups, scaling, self)
        return output_SHD

    def check(self, query: Tensor, key: Tensor, value: Tensor, groups: SequenceGroups) -> None:
        """Raises ValueError for what the code in C would take for something else."""
        slots, heads, size = query.shape
        fits = key.shape == value.shape == (slots, key.shape[1], size) and heads % key.shape[1] == 0
        if not fits or len(groups.slots_S) != slots:
            raise ValueError("queries, keys, values and slots do not fit each other")
        if any(tensor.dtype != self._dtype or tensor.device.type != "cpu" for tensor in (query, key, value)):
            raise ValueError(f"these kernels are for {self._dtype} on a CPU")

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, groups: SequenceGroups, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """(output, log-sum-exps of the scores (S, H) float32)."""
        output, sums_SH = torch.empty_like(query), torch.empty(query.shape[:2], dtype=torch.float32)
        about, _held = _describe(query, key, groups, scaling, matrices=3)
        self._forward(ctypes.byref(about), *(t.data_ptr() for t in (query, key, value, output, sums_SH)))
        return output, sums_SH

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        sums_SH: Tensor,
        groups: SequenceGroups,
        scaling: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""
        grad_query = torch.empty_like(query)
        grad_key, grad_value = (torch.empty(query.shape, dtype=torch.float32) for _ in range(2))
        about, _held = _describe(query, key, groups, scaling, matrices=6)
        tensors = (query, key, value, output, sums_SH, grad, grad_query, grad_key, grad_value)
        self._backward(ctypes.byref(about), *(tensor.data_ptr() for tensor in tensors))
        grad_key, grad_value = (
            part.unflatten(1, (key.shape[1], -1)).sum(2).to(key.dtype) for part in (grad_key, grad_value)
        )
        return grad_query, grad_key, grad_value


@cache
def attention_kernels(dtype: torch.dtype) -> AttentionKernels:
    """Those of this process. Raises KernelError where they cannot be built."""
    return AttentionKernels(dtype)


def _describe(
    query: Tensor, key: Tensor, groups: SequenceGroups, scaling: float, *, matrices: int
) -> tuple[_Attention, Tensor]:
    """What attend.c is told, and the scratch memory in it: of each thread so many matrices of keys, values and their
    gradients for a shared sequence and one that sees it, and a tile of queries."""
    width, columns = rounded_up(query.shape[2]), groups.most_columns
    threads = torch.get_num_threads()  # no fewer: OpenMP would end the others and start them again
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
        kernels.check(query, key, value, groups)
        output, sums_SH = kernels.forward(query, key, value, groups, scaling)
        ctx.save_for_backward(query, key, value, output, sums_SH)
        ctx.groups, ctx.scaling, ctx.kernels = groups, scaling, kernels
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grads = ctx.kernels.backward(grad.contiguous(), *ctx.saved_tensors, ctx.groups, ctx.scaling)
        return *grads, None, None, None
