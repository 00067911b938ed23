"""Adam as TensorFlow 1 computes it, which trained the RLHF models of 2019."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor


class AdamTF(torch.optim.Optimizer):
    """Adam with epsilon outside the bias correction, and decoupled weight decay.

    With gradient g, m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2, step t (from 1) moves a weight by

        -lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    This is the efficient form given at the end of section 2 of https://arxiv.org/abs/1412.6980, whose epsilon stays
    outside the correction. `torch.optim.AdamW` divides by sqrt(v / (1 - b2^t)) + eps instead. It makes the same steps
    with eps / sqrt(1 - b2^t) in place of eps. Early in training a given epsilon therefore damps small gradients far
    more here: the first step equals AdamW's with an epsilon 31.6 times as large (b2 = 0.999). The policies of
    https://arxiv.org/abs/1909.08593 were trained this way, with eps 1e-5.

    State per weight: `step` (0-d float32), `exp_avg` and `exp_avg_sq`, the names of `torch.optim.AdamW`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)
        return loss

    def _move(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        (beta1, beta2), mean, square = group["betas"], state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        rate = group["lr"] * _bias_correction(int(state["step"]), beta1, beta2)
        # Decay is decoupled: it uses the learning rate without the bias correction, as AdamW does.
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-rate)


def _bias_correction(step: int, beta1: float, beta2: float) -> float:
    return math.sqrt(1 - beta2**step) / (1 - beta1**step)
