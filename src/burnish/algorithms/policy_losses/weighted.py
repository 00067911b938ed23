"""REINFORCE and its importance-weighted forms. Weights are bounded and carry no gradient, so no token is dropped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnish.algorithms.policy_losses.result import PolicyLoss, read_tokens
from burnish.errors import ConfigError


def reinforce(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> PolicyLoss:
    """-A logprob, Williams 1992 (https://doi.org/10.1007/BF00992696). The old policy is used only in metrics.

    With one advantage per sequence and the aggregation sequence_mean_token_sum, this is the sequence form -A log pi(y)
    of RLOO and ReMax.
    """
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return tokens.result(-tokens.advantages_BT * tokens.logprobs_BT, tokens.metrics())


def cispo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 1.0,
    ratio_cap: float = 5.0,
) -> PolicyLoss:
    """-sg(clip(rho, 1 - clip_low, ratio_cap)) A logprob, MiniMax-M1 2025 (https://arxiv.org/abs/2506.13585).

    `ratio_cap` is an absolute ratio, not an offset from 1. `clip_low` 1 means no lower bound, as published.
    """
    if not (ratio_cap > 1 and math.isfinite(ratio_cap)):
        raise ConfigError(
            f"ratio_cap of cispo is {ratio_cap}", remedy="it is an absolute ratio: set it above 1 (usually 5.0)"
        )
    inputs = (logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(*inputs, low=1 - clip_low, high=ratio_cap, negative_only=False)


def tis(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    ratio_low: float = 0.0,
    ratio_high: float = 1.0,
) -> PolicyLoss:
    """-sg(clip(rho, ratio_low, ratio_high)) A logprob: truncated importance sampling (https://arxiv.org/abs/2503.14286).

    Both bounds are absolute ratios.
    """
    _check_bounds("tis", ratio_low, ratio_high)
    inputs = (logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(*inputs, low=ratio_low, high=ratio_high, negative_only=False)


def topr(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    ratio_low: float = 0.0,
    ratio_high: float = 1.0,
) -> PolicyLoss:
    """`tis` where A < 0, plain REINFORCE elsewhere, Le Roux 2025 (https://arxiv.org/abs/2503.14286).

    Good responses keep their full weight however unlikely they have become; bad ones fade out with their ratio. The
    ratio is per token, and both bounds are absolute ratios.
    """
    _check_bounds("topr", ratio_low, ratio_high)
    inputs = (logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(*inputs, low=ratio_low, high=ratio_high, negative_only=True)


def _weighted(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    low: float,
    high: float,
    negative_only: bool,
) -> PolicyLoss:
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    ratio_BT = tokens.ratio_BT.detach()  # the weight is a constant: the gradient goes through logprobs_BT only
    weighed_BT = tokens.advantages_BT < 0 if negative_only else tokens.mask_BT
    weight_BT = torch.where(weighed_BT, ratio_BT.clamp(low, high), torch.ones_like(ratio_BT))
    metrics = tokens.metrics(
        clipped_low_BT=weighed_BT & (ratio_BT < low), clipped_high_BT=weighed_BT & (ratio_BT > high)
    )
    return tokens.result(-weight_BT * tokens.advantages_BT * tokens.logprobs_BT, metrics)


def _check_bounds(name: str, low: float, high: float) -> None:
    if not (0 <= low <= high and high > 0 and math.isfinite(high)):
        raise ConfigError(
            f"ratio bounds of {name} are [{low}, {high}]",
            remedy="give absolute ratios with 0 <= ratio_low <= ratio_high, ratio_high finite",
        )
