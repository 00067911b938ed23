"""Log-ratios of two policies on the same tokens, clamped to a range where `exp` is harmless, and the entropy of one:
its value, and the tokens where it is highest."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float, fill_masked

LOG_RATIO_LIMIT = 20.0  # exp(20) = 4.9e8: far outside any trust region, far inside float32


def log_ratio(logprobs: Tensor, other_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """`logprobs - other_logprobs`, not clamped; 0 in masked slots if a mask is given. Any shape, in nats."""
    if logprobs.shape != other_logprobs.shape:
        raise ValueError(f"logprobs of shapes {tuple(logprobs.shape)} and {tuple(other_logprobs.shape)} do not pair up")
    if mask is None:
        return as_float(logprobs) - as_float(other_logprobs)
    return fill_masked(logprobs, mask) - fill_masked(other_logprobs, mask)


def clamp_log_ratio(log_ratios: Tensor) -> Tensor:
    """Clamp `log_ratios` to [-20, 20]; outside this range the gradient is 0."""
    return log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def beyond_limit(log_ratios: Tensor) -> Tensor:
    """True where `clamp_log_ratio` changes the value and removes the gradient."""
    return log_ratios.detach().abs() > LOG_RATIO_LIMIT


def ratio(logprobs: Tensor, other_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp of the clamped log-ratio; 1 in masked slots if a mask is given."""
    return clamp_log_ratio(log_ratio(logprobs, other_logprobs, mask)).exp()


def entropy_from_logits(logits: Tensor) -> Tensor:
    """logsumexp(logits) - sum p * logit over the last dimension. `[..., V]` -> `[...]`, nats, never below 0.

    Logits of -inf (tokens excluded by top-k and similar filters) have probability 0, in value and gradient.
    """
    scores = as_float(logits)
    finite = torch.where(torch.isneginf(scores), torch.zeros_like(scores), scores)  # 0 * -inf would be NaN
    probabilities = torch.softmax(scores, dim=-1)
    # The difference of two nearly equal numbers can round to just below 0, which an entropy never is.
    return (torch.logsumexp(scores, dim=-1) - (probabilities * finite).sum(dim=-1)).clamp(min=0.0)


def highest_entropy(entropy_BT: Tensor, mask_BT: Tensor, *, share: float) -> Tensor:
    """True `[B, T]` at the trained tokens of highest entropy: at most this share of them, but at least one (more only
    on ties), Wang 2025 (https://arxiv.org/abs/2506.01939).

    At these tokens a response can go one way or another; the others mostly follow from them. Pass the rollouts of the
    entire step, all workers together.
    """
    entropy_BT = fill_masked(entropy_BT, mask_BT, -torch.inf)
    ranked = entropy_BT.flatten().sort(descending=True).values
    wanted = max(1, int(share * int(mask_BT.bool().sum())))
    return mask_BT.bool() & (entropy_BT >= ranked[wanted - 1])
