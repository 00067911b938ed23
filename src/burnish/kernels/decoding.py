"""Python functions for the kernels in decode.c.

Shapes: R rows, X hidden size, I intermediate size, D head size, W head size rounded up to BLOCK.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from burnish.kernels.build import ADDRESS, COUNT, Kernels

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


class DecodeKernels(Kernels):
    """Kernels for contiguous tensors of `dtype`. To keep the token loop fast, arguments are not checked."""

    SOURCE = "decode.c"
    TYPES: ClassVar = {
        "add_and_normalise": [*[ADDRESS] * 4, COUNT, COUNT, ctypes.c_float, COUNT],
        "gate": [ADDRESS, ADDRESS, COUNT, COUNT, COUNT],
        "attend": [ctypes.POINTER(DecodeStep), COUNT, *[ADDRESS] * 4],
    }

    def add_and_normalise(self, states_RX: Tensor, more_RX: Tensor | None, weight_X: Tensor, epsilon: float) -> Tensor:
        """Add `more` to `states` in place. Returns (R, X), the RMS norm of the sum times `weight`."""
        normed_RX = torch.empty_like(states_RX)
        tensors = states_RX, more_RX, weight_X, normed_RX
        self.call("add_and_normalise", *tensors, *states_RX.shape, epsilon, torch.get_num_threads())
        return normed_RX

    def gate(self, gate_and_up_RJ: Tensor) -> Tensor:
        """(R, I): silu of the first half of the columns of (R, 2 I), times the second half."""
        rows, columns = gate_and_up_RJ.shape
        activated_RI = gate_and_up_RJ.new_empty(rows, columns // 2)
        self.call("gate", gate_and_up_RJ, activated_RI, rows, columns // 2, torch.get_num_threads())
        return activated_RI

    def attend(
        self, step: DecodeStep, layer: int, everything_RX: Tensor, head_norms: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """(R, heads x D): the attention output of each row's new token.

        everything: queries, keys and values of the new tokens, concatenated and not yet rotated. Keys and values are
        written into the row's cache. head_norms: weights (D,) of the norms of queries and keys, if the model has them.
        """
        outputs_RX = everything_RX.new_empty(step.rows, step.heads * step.size)
        self.call("attend", ctypes.byref(step), layer, everything_RX, *(head_norms or (None, None)), outputs_RX)
        return outputs_RX


decode_kernels = cache(DecodeKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""
