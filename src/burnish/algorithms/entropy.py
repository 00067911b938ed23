"""Entropy of the categorical distribution given by logits."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float


def entropy_from_logits(logits: Tensor) -> Tensor:
    """logsumexp(logits) - sum p * logit over the last dimension. `[..., V]` -> `[...]`, nats, never below 0.

    Logits of -inf (tokens excluded by top-k and similar filters) have probability 0, in value and gradient.
    """
    scores = as_float(logits)
    finite = torch.where(torch.isneginf(scores), torch.zeros_like(scores), scores)  # 0 * -inf would be NaN
    probabilities = torch.softmax(scores, dim=-1)
    # The difference of two nearly equal numbers can round to just below 0, which an entropy never is.
    return (torch.logsumexp(scores, dim=-1) - (probabilities * finite).sum(dim=-1)).clamp(min=0.0)
