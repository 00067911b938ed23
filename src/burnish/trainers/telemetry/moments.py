"""Advantages, values and returns of a step as first and second moments over the trained tokens, which merge exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.forward.batch import Batch
from burnish.types import Metric, Reduction


def describe_advantages(raw_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> dict[str, Metric]:
    """Advantages (B, T) as the estimator gave them, and as they are trained on."""
    # float64: the spread comes from the second moment, which would lose most digits if it is small against the mean
    raw, final, count = raw_BT[mask_BT].double(), advantages_BT[mask_BT].double(), mask_BT.sum()
    return {
        "advantage/raw_mean": Metric(Reduction.MEAN, raw.sum(), count),
        "advantage/raw_square_mean": Metric(Reduction.MEAN, raw.square().sum(), count),
        "advantage/mean": Metric(Reduction.MEAN, final.sum(), count),
        "advantage/square_mean": Metric(Reduction.MEAN, final.square().sum(), count),
        "advantage/absolute_max": Metric(Reduction.MAX, final.abs().max() if final.numel() else 0.0, count),
    }


def describe_values(batch: Batch) -> dict[str, Metric]:
    """Values and returns of a step; empty without a critic."""
    if batch.values is None or batch.returns is None:
        return {}
    mask = batch.loss_mask
    values, returns = batch.values[mask].double(), batch.returns[mask].double()
    moments = {
        "critic/value_mean": values,
        "critic/return_mean": returns,
        "critic/return_square_mean": returns.square(),
        "critic/residual_mean": returns - values,
        "critic/residual_square_mean": (returns - values).square(),
    }
    return {name: Metric(Reduction.MEAN, torch.sum(of), mask.sum()) for name, of in moments.items()}
