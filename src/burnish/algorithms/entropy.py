"""Entropy of a categorical distribution given by logits."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float


def entropy_from_logits(logits: Tensor) -> Tensor:
    """logsumexp(logits) - sum p * logit over the last dimension. `[..., V]` -> `[...]`, nats, never below 0.

    Logits of -inf (tokens ruled out by top-k and the like) count as probability 0, in value and gradient.
    """
    scores = as_float(logits)
    finite = torch.where(torch.isneginf(scores), torch.zeros_like(scores), scores)
    probabilities = torch.softmax(scores, dim=-1)
    return (torch.logsumexp(scores, dim=-1) - (probabilities * finite).sum(dim=-1)).clamp(min=0.0)
