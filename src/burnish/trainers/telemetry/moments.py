"""Moments of a step's advantages, values and returns, and the metrics that follow from the finished row.

Moments are means, so they merge exactly over micro-batches; spreads do not. So the moments are passed around, and the
readable metrics are derived only for the finished row. Rows in, rows out: the row given is never changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from burnish.algorithms.mismatch import effective_sample_size
from burnish.algorithms.statistics import explained_variance, variance_of
from burnish.forward.batch import Batch
from burnish.types import Metric, Reduction


def describe_advantages(raw_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> dict[str, Metric]:
    """Measure advantages (B, T) as the estimator gave them, and as they are trained on."""
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
    """Measure values and returns of a step; empty without a critic."""
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


SPREADS = {
    "reward/std": ("reward/mean", "reward/square_mean"),
    "advantage/std": ("advantage/mean", "advantage/square_mean"),
    "advantage/raw_std": ("advantage/raw_mean", "advantage/raw_square_mean"),
}
"""Standard deviations and the two moments that give them; the second moment is removed from the row."""


def derive(row: Mapping[str, float]) -> dict[str, float]:
    """The row with its second moments replaced by spreads, plus the throughputs of the step."""
    row = derive_values(row)
    for spread, (mean, square_mean) in SPREADS.items():
        if square_mean in row:
            row[spread] = math.sqrt(variance_of(row.pop(square_mean), row[mean]))
    if "rollout/weight_square_mean" in row:
        weights = row["rollout/weight_mean"], row.pop("rollout/weight_square_mean")
        row["rollout/effective_sample_size"] = effective_sample_size(*weights)
    return row | throughputs(row)


def derive_values(row: Mapping[str, float]) -> dict[str, float]:
    """The row with a critic's moments replaced by return_std and explained_variance (left out if all returns are
    equal)."""
    row = dict(row)
    if "critic/return_square_mean" not in row:
        return row
    variance = variance_of(row.pop("critic/return_square_mean"), row["critic/return_mean"])
    residual = variance_of(row.pop("critic/residual_square_mean"), row.pop("critic/residual_mean"))
    row["critic/return_std"] = variance**0.5
    explained = explained_variance(residual, variance)
    if explained is not None:
        row["critic/explained_variance"] = explained
    return row


def throughputs(row: Mapping[str, float]) -> dict[str, float]:
    """Response tokens of the step per second of the whole step, of generation and of the update."""
    tokens, rates = row["rollout/response_tokens_sum"], {}
    for name, phase in (("response", "step"), ("generate", "generate"), ("update", "update")):
        seconds = row.get(f"time/{phase}_seconds", 0.0)
        if seconds > 0:
            rates[f"throughput/{name}_tokens_per_second"] = tokens / seconds
    return rates
