"""Per-token losses other than the policy losses, aggregated in the same way: the critic's, and that of dynamic
fine-tuning."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float, fill_masked
from burnish.types import Metric, Reduction


def clipped_value(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, *, clip: float | None, mask_BT: Tensor | None = None
) -> Tensor:
    """1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) per token `[B, T]` (https://arxiv.org/abs/1707.06347).

    `clip` is in units of the value; None gives the plain squared error. Gradients reach only `values_BT`. With the loss
    mask as `mask_BT`, masked slots are 0 in value and gradient, whatever they contain.
    """
    values, old_values, returns = (_filled(t, mask_BT) for t in (values_BT, old_values_BT, returns_BT))
    squared = (values - returns.detach()).square()
    if clip is None:
        return squared / 2
    # The larger error counts, as in PPO's policy loss. If it is the clipped one, it is constant and has no gradient.
    return torch.maximum(squared, (_clip(values, old_values.detach(), clip) - returns.detach()).square()) / 2


def value_metrics(
    values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, *, clip: float | None
) -> dict[str, Metric]:
    """`clip_fraction` (tokens whose clipped error is larger) and `error_mean` (mean of V - R), over trained tokens."""
    values, old_values, returns = (fill_masked(t, mask_BT).detach() for t in (values_BT, old_values_BT, returns_BT))
    count = mask_BT.bool().sum()
    error = values - returns
    clipped = torch.zeros_like(error)
    if clip is not None:
        clipped = ((_clip(values, old_values, clip) - returns).square() > error.square()).to(error.dtype)
    return {
        "clip_fraction": Metric(Reduction.MEAN, fill_masked(clipped, mask_BT).sum(), count),
        "error_mean": Metric(Reduction.MEAN, error.sum(), count),
    }


def dynamic_nll(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """-p log p of each token, in which its probability p has no gradient; 0 where the mask is False.

    Its gradient is -grad p in place of -(grad p) / p, so that a token that the model finds unlikely does not outweigh
    the others (dynamic fine-tuning, https://arxiv.org/abs/2508.05629).
    """
    logprobs = fill_masked(logprobs_BT, mask_BT)
    return -logprobs.detach().exp() * logprobs


def _filled(values: Tensor, mask: Tensor | None) -> Tensor:
    return as_float(values) if mask is None else fill_masked(values, mask)


def _clip(values: Tensor, old_values: Tensor, clip: float) -> Tensor:
    return old_values + (values - old_values).clamp(-clip, clip)
