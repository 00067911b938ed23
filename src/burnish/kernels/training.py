"""Python functions for the kernels in train.c, with their gradients.

Shapes: S tokens, X hidden size, I intermediate size, H heads, D head size. All tensors have the kernels' dtype, except
cosines and sines, which are float32.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from burnish.kernels.build import ADDRESS, COUNT, Kernels


class TrainKernels(Kernels):
    """Kernels of training passes, differentiable once."""

    SOURCE = "train.c"
    TYPES: ClassVar = {
        "normalise_forward": [*[ADDRESS] * 6, COUNT, COUNT, ctypes.c_float, COUNT],
        "normalise_backward": [*[ADDRESS] * 7, COUNT, COUNT, COUNT],
        "rotate_forward": [*[ADDRESS] * 4, *[COUNT] * 4],
        "rotate_backward": [*[ADDRESS] * 4, *[COUNT] * 4],
        "gate_forward": [*[ADDRESS] * 3, *[COUNT] * 3],
        "gate_backward": [*[ADDRESS] * 5, *[COUNT] * 3],
    }

    def normalise(
        self, states_SX: Tensor, more_SX: Tensor | None, weight_X: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """(sum, its RMS norm times weight), where sum is states + more, or `states` itself without `more`."""
        self.check(states_SX, states_SX if more_SX is None else more_SX, weight_X)
        if weight_X.shape != states_SX.shape[-1:] or (more_SX is not None and more_SX.shape != states_SX.shape):
            raise ValueError("the shapes of states, the tensor to add and the norm's weight do not match")
        return _Normalise.apply(states_SX, more_SX, weight_X, epsilon, self)

    def normalised(self, states_SX: Tensor, weight_X: Tensor, epsilon: float) -> Tensor:
        """Recompute the second output of `normalise` from its first, without gradient."""
        normed_SX, shrink_S = torch.empty_like(states_SX), torch.empty(len(states_SX), dtype=torch.float32)
        sizes = states_SX.shape
        self.call("normalise_forward", states_SX, None, weight_X, states_SX, normed_SX, shrink_S, *sizes, epsilon)
        return normed_SX

    def rotate(self, states_SHD: Tensor, cosine_SD: Tensor, sine_SD: Tensor) -> Tensor:
        """Apply rotary position embeddings to queries or keys."""
        self.check(states_SHD)
        table = (states_SHD.shape[0], states_SHD.shape[2])
        if any(part.shape != table or part.dtype != torch.float32 for part in (cosine_SD, sine_SD)):
            raise ValueError(f"cosines and sines must be float32 of shape {table}")
        return _Rotate.apply(states_SHD, cosine_SD, sine_SD, self)

    def gate(self, gate_SI: Tensor, up_SI: Tensor) -> Tensor:
        """silu(gate) * up."""
        self.check(gate_SI, up_SI)
        if gate_SI.shape != up_SI.shape:
            raise ValueError("gate and up have different shapes")
        return _Gate.apply(gate_SI, up_SI, self)

    def gated(self, gate_SI: Tensor, up_SI: Tensor) -> Tensor:
        """Recompute `gate` without gradient."""
        gate_SI, up_SI = gate_SI.contiguous(), up_SI.contiguous()
        gated_SI = torch.empty_like(gate_SI)
        self.call("gate_forward", gate_SI, up_SI, gated_SI, *gate_SI.shape)
        return gated_SI

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of train.c, with the number of threads after these arguments."""
        super().call(name, *arguments, torch.get_num_threads())


train_kernels = cache(TrainKernels)
"""The kernels of this process. Raises KernelError if they cannot be built."""


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, states: Tensor, more: Tensor | None, weight: Tensor, epsilon: float, kernels: TrainKernels
    ) -> tuple[Tensor, Tensor]:
        states = states.contiguous()
        more = None if more is None else more.contiguous()
        rows, size = states.numel() // states.shape[-1], states.shape[-1]
        total = states.view_as(states) if more is None else torch.empty_like(states)
        normed = torch.empty_like(states)
        shrink_R = torch.empty(rows, dtype=torch.float32)
        kernels.call("normalise_forward", states, more, weight, total, normed, shrink_R, rows, size, epsilon)
        ctx.save_for_backward(total, shrink_R, weight)
        ctx.kernels, ctx.has_more = kernels, more is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, shrink_R, weight = ctx.saved_tensors
        if grad_normed is None:
            return grad_total, grad_total if ctx.has_more else None, None, None, None
        rows, size = total.numel() // total.shape[-1], total.shape[-1]
        side = None if grad_total is None else grad_total.contiguous()
        grad = torch.empty_like(total)
        # The gradient of the weight is summed over rows: one line per thread, to avoid races.
        lines = torch.zeros(torch.get_num_threads(), size, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        ctx.kernels.call(
            "normalise_backward", grad_normed.contiguous(), side, total, shrink_R, weight, grad, lines, rows, size
        )
        grad_weight = None if lines is None else lines.sum(0)
        return grad, grad if ctx.has_more else None, grad_weight, None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, states: Tensor, cosine: Tensor, sine: Tensor, kernels: TrainKernels
    ) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.kernels = kernels
        return _rotated("rotate_forward", states, cosine, sine, kernels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        cosine, sine = ctx.saved_tensors
        return _rotated("rotate_backward", grad, cosine, sine, ctx.kernels), None, None, None


def _rotated(name: str, states: Tensor, cosine: Tensor, sine: Tensor, kernels: TrainKernels) -> Tensor:
    states = states.contiguous()
    rotated = torch.empty_like(states)
    kernels.call(name, states, cosine, sine, rotated, *states.shape)
    return rotated


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kernels: TrainKernels) -> Tensor:  # type: ignore[override]
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        ctx.kernels = kernels
        return kernels.gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        ctx.kernels.call("gate_backward", grad.contiguous(), gate, up, grad_gate, grad_up, *gate.shape)
        return grad_gate, grad_up, None
