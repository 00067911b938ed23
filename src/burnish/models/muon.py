"""Muon: steps of the layers' matrices in which all directions have the same length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ROUNDS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5. They move every singular value from 0.005 to 1 near 1 in `ROUNDS`."""
ADAM_RMS = 0.2
"""Usual root mean square of an update of AdamW, in learning rates."""


class Muon(torch.optim.AdamW):
    """Momentum made orthogonal for the groups with `orthogonal` set, AdamW for the others.

    Jordan 2024 (https://kellerjordan.github.io/posts/muon), scaled as in Liu 2025 (https://arxiv.org/abs/2502.16982).
    With gradient G of a matrix, M <- mu M + (1 - mu) G, and a step moves it by

        -lr (0.2 sqrt(max(rows, columns)) O + decay W), O = orthogonal(mu M + (1 - mu) G)

    The factor gives the step the root mean square of AdamW's, so that one learning rate and one weight decay suit both.
    The momentum is half the state of AdamW, and is called `exp_avg` too.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # closures, which other optimizers take, have no use here
        """One update of every weight that has a gradient. The gradients of matrices are dropped."""
        for group in self.param_groups:
            for weight in group["params"] if group["orthogonal"] else ():
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)
                    weight.grad = None  # AdamW leaves what has none alone
        super().step()

    def _move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
        state["exp_avg"].lerp_(grad, 1 - MOMENTUM)
        direction = orthogonal(torch.lerp(grad, state["exp_avg"], MOMENTUM))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(direction, alpha=-group["lr"] * ADAM_RMS * max(weight.shape[-2:]) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Move the singular values of a matrix, or of each in a stack `[..., rows, columns]`, near 1 (0.7 to 1.2), and keep
    its singular vectors: rounds of a quintic Newton-Schulz iteration. Directions without any length stay at 0."""
    linear, cubic, quintic = QUINTIC
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if is_tall else matrix
    norm = torch.linalg.matrix_norm(wide, keepdim=True)  # at least the largest singular value
    wide = wide / norm.clamp(min=torch.finfo(norm.dtype).tiny)
    for _ in range(ROUNDS):
        gram = wide @ wide.mT
        wide = linear * wide + (cubic * gram + quintic * gram @ gram) @ wide
    return wide.mT if is_tall else wide


def is_layer_matrix(name: str, weight: Tensor) -> bool:
    """Return whether a weight is a matrix of one of the numbered layers, or a stack of them (experts): neither an
    embedding, a head or a position table, which are outside, nor a vector or a convolution of single channels."""
    return any(part.isdecimal() for part in name.split(".")) and weight.dim() >= 2 and min(weight.shape[-2:]) > 1
