"""Losses of reward models on human preferences, one per comparison (divide their sum by the comparisons of the step),
and measures of the comparisons that a model gets right. DPO and its kin are in `pair_losses`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from burnish.algorithms.masking import as_float
from burnish.errors import ConfigError


def bradley_terry(
    chosen_B: Tensor,
    rejected_B: Tensor,
    *,
    margin: Tensor | None = None,
    tie_B: Tensor | None = None,
    center_coef: float = 0.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log sigmoid(chosen - rejected - margin) per pair `[B]` (https://arxiv.org/abs/1706.03741).

    Args:
        margin: `[B]`, by how much the chosen one should score higher (https://arxiv.org/abs/2307.09288).
        tie_B: `[B]` bool, pairs of equal quality: half a win for each, margin 0 (label 1/2 of the same model).
        center_coef: weight of (chosen + rejected)^2, which keeps scores near 0 (https://arxiv.org/abs/2312.09244).
        label_smoothing: probability below 1/2 that a label is the wrong way round (https://ericmitchell.ai/cdpo.pdf).
    """
    if not 0 <= label_smoothing < 0.5:
        raise ConfigError(f"label_smoothing is {label_smoothing}", remedy="set it to at least 0 and below 0.5")
    chosen, rejected = as_float(chosen_B), as_float(rejected_B)
    if chosen.shape != rejected.shape:
        raise ValueError(f"{tuple(chosen.shape)} chosen scores, but {tuple(rejected.shape)} rejected ones")
    gap = chosen - rejected
    if margin is not None:
        wanted = as_float(margin)
        gap = gap - (wanted if tie_B is None else torch.where(tie_B, torch.zeros_like(wanted), wanted))
    flipped = torch.full_like(gap, label_smoothing)
    if tie_B is not None:
        flipped = torch.where(tie_B, torch.full_like(flipped, 0.5), flipped)
    # F.logsigmoid stays finite and keeps its gradient where sigmoid rounds to 0 and its log would be -inf.
    loss = -(1 - flipped) * F.logsigmoid(gap) - flipped * F.logsigmoid(-gap)
    return loss + center_coef * (chosen + rejected).square()


def best_of(scores_BK: Tensor, best_B: Tensor, *, mask_BK: Tensor | None = None) -> Tensor:
    """Cross-entropy of a softmax over K candidates with `best_B` as the best, `[B]` (https://arxiv.org/abs/1909.08593).

    With K = 2 it is `bradley_terry`. `mask_BK` is False for missing candidates (in rows with fewer than K).
    """
    scores = as_float(scores_BK)
    if mask_BK is not None:
        scores = torch.where(mask_BK.bool(), scores, torch.full_like(scores, -torch.inf))
    return torch.logsumexp(scores, dim=1) - scores.gather(1, best_B.long().unsqueeze(1)).squeeze(1)


def best_lead(scores_BK: Tensor, best_B: Tensor, *, mask_BK: Tensor) -> Tensor:
    """Lead of the best candidate over the highest-scoring other one, `[B]`; below 0 if it is behind."""
    scores = scores_BK.masked_fill(~mask_BK.bool(), -torch.inf)
    column = best_B.long().unsqueeze(1)
    return scores.gather(1, column).squeeze(1) - scores.scatter(1, column, -torch.inf).max(dim=1).values


def share_of_first(scores_BK: Tensor, best_B: Tensor, *, mask_BK: Tensor) -> Tensor:
    """Accuracy of the scores, `[B]`: 1 if only `best_B` has the highest score, 1/n if n candidates including it share
    the highest score (no better than drawing one of them at random), and 0 otherwise."""
    scores = scores_BK.masked_fill(~mask_BK.bool(), -torch.inf)
    first_BK = scores == scores.max(dim=1, keepdim=True).values
    return first_BK.gather(1, best_B.long().unsqueeze(1)).squeeze(1).float() / first_BK.sum(dim=1)
