"""Python functions for the kernels in decode.c.

Shapes: R rows, X hidden size, I intermediate size, D head size, W head size rounded up to BLOCK.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from burnish.kernels.build import ADDRESS, COUNT, load_library

BLOCK = 16
"""Same as in elements.h: number of tokens in a block of keys, and the multiple to which widths are rounded up."""


def rounded_up(count: int) -> int:
    """Round `count` up to whole blocks."""
    return -(-count // BLOCK) * BLOCK


class DecodeStep(ctypes.Structure):
    """`struct step` of decode.c, which explains the fields. The caller must keep the tensors that they point to."""

    _fields_ = (
        *((name, COUNT) for name in ("rows", "heads", "key_heads", "size", "width", "layers", "tiles", "threads")),
        ("scratch_size", COUNT),
        *((name, ADDRESS) for name in ("order", "tiles_T3", "prompt_P", "prompt_capacity_P", "prompt_length_P")),
        *((name, ADDRESS) for name in ("own_R", "own_capacity_R", "column_R", "cosine_RD", "sine_RD", "scratch")),
        ("scaling", ctypes.c_float),
        ("epsilon", ctypes.c_float),
    )


class DecodeKernels:
    """Kernels for contiguous tensors of `dtype`. To keep the token loop fast, arguments are not checked."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Load the kernels. KernelError if they cannot be built."""
        library = load_library("decode.c", dtype)
        self._add_and_normalise = library.add_and_normalise
        self._add_and_normalise.argtypes = [*[ADDRESS] * 4, COUNT, COUNT, ctypes.c_float, COUNT]
        self._gate = library.gate
        self._gate.argtypes = [ADDRESS, ADDRESS, COUNT, COUNT, COUNT]
        self._attend = library.attend
        self._attend.argtypes = [ctypes.POINTER(DecodeStep), COUNT, *[ADDRESS] * 4]
        for function in (self._add_and_normalise, self._gate, self._attend):
            function.restype = None

    def add_and_normalise(self, states_RX: Tensor, more_RX: Tensor | None, weight_X: Tensor, epsilon: float) -> Tensor:
        """Add `more` to `states` in place. Returns (R, X), the RMS norm of the sum times `weight`."""
        normed_RX = torch.empty_like(states_RX)
        rows, size = states_RX.shape
        more = None if more_RX is None else more_RX.data_ptr()
        self._add_and_normalise(
            states_RX.data_ptr(),
            more,
            weight_X.data_ptr(),
            normed_RX.data_ptr(),
            rows,
            size,
            epsilon,
            torch.get_num_threads(),
        )
        return normed_RX

    def gate(self, gate_and_up_RJ: Tensor) -> Tensor:
        """(R, I): silu of the first half of the columns of (R, 2 I), times the second half."""
        rows, columns = gate_and_up_RJ.shape
        activated_RI = gate_and_up_RJ.new_empty(rows, columns // 2)
        self._gate(gate_and_up_RJ.data_ptr(), activated_RI.data_ptr(), rows, columns // 2, torch.get_num_threads())
        return activated_RI

    def attend(
        self, step: DecodeStep, layer: int, everything_RX: Tensor, head_norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """(R, heads x D): the attention output of each row's new token.

        everything: queries, keys and values of the new tokens, concatenated and not yet rotated. Keys and values are
        written into the row's cache. head_norms: weights (D,) of the norms of queries and keys, if the model has them.
        """
        outputs_RX = everything_RX.new_empty(step.rows, step.heads * step.size)
        query_norm, key_norm = (None, None) if head_norms is None else (norm.data_ptr() for norm in head_norms)
        self._attend(ctypes.byref(step), layer, everything_RX.data_ptr(), query_norm, key_norm, outputs_RX.data_ptr())
        return outputs_RX


decode_kernels = cache(DecodeKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""
