"""Attention by the definition: all scores at once."""

import torch
from torch import Tensor


def dense(query: Tensor, key: Tensor, value: Tensor, sees: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """(output (Q, H, D), log-sum-exps (H, Q)) where `sees` (Q, K) is True for the keys of each query."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scaling
    scores = scores.masked_fill(~sees, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), scores.logsumexp(-1)
