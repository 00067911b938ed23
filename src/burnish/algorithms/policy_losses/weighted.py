"""Losses without a hard clip, so that no token is dropped: REINFORCE and its importance-weighted forms, whose weights
are bounded and carry no gradient, and losses that keep the policy close to the old one smoothly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnish.algorithms.policy_losses.result import PolicyLoss, Tokens, read_tokens
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
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(tokens, tokens.mask_BT, 1 - clip_low, ratio_cap)


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
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(tokens, tokens.mask_BT, ratio_low, ratio_high)


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
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _weighted(tokens, tokens.advantages_BT < 0, ratio_low, ratio_high)


def sapo_gate(ratio: Tensor, tau: Tensor | float) -> Tensor:
    """sigmoid(tau (rho - 1)) 4 / tau: slope 1 at rho = 1, flat far from it."""
    return torch.sigmoid(tau * (ratio - 1)) * 4 / tau


def sapo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> PolicyLoss:
    """-A gate(rho), where tau depends on the sign of A, Gao 2025 (https://arxiv.org/abs/2511.20347).

    A larger tau for A < 0 stops pushing bad tokens sooner, because pushing one token down raises all others.
    """
    if not (tau_positive > 0 and tau_negative > 0):
        raise ConfigError(
            f"tau_positive and tau_negative of sapo are {tau_positive} and {tau_negative}", remedy="set both above 0"
        )
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    like = tokens.ratio_BT.detach()
    tau_BT = torch.where(
        tokens.advantages_BT > 0, torch.full_like(like, tau_positive), torch.full_like(like, tau_negative)
    )
    return tokens.result(-tokens.advantages_BT * sapo_gate(tokens.ratio_BT, tau_BT), tokens.metrics())


def kimi(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, tau: float = 0.1
) -> PolicyLoss:
    """-A logprob + tau / 2 d^2, Kimi k1.5 2025 (https://arxiv.org/abs/2501.12599). d is clamped to [-20, 20]."""
    if tau < 0:
        raise ConfigError(f"tau of kimi is {tau}, which rewards distance", remedy="set it to 0 or more (usually 0.1)")
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    loss_BT = -tokens.advantages_BT * tokens.logprobs_BT + tau / 2 * tokens.log_ratio_BT.square()
    return tokens.result(loss_BT, tokens.metrics())


def _weighted(tokens: Tokens, weighed_BT: Tensor, low: float, high: float) -> PolicyLoss:
    """Policy gradient with the clipped ratio as the weight of the tokens in `weighed_BT`, and 1 elsewhere."""
    ratio_BT = tokens.ratio_BT.detach()  # the weight is a constant: the gradient goes through logprobs_BT only
    weight_BT = torch.where(weighed_BT, ratio_BT.clamp(low, high), torch.ones_like(ratio_BT))
    metrics = tokens.metrics(
        clipped_low_BT=weighed_BT & (ratio_BT < low), clipped_high_BT=weighed_BT & (ratio_BT > high)
    )
    return tokens.result(-weight_BT * tokens.advantages_BT * tokens.logprobs_BT, metrics)


def _check_bounds(name: str, low: float, high: float) -> None:
    if not (0 <= low <= high and high > 0 and math.isfinite(high)):
        raise ConfigError(
            f"ratio bounds of {name} are [{low}, {high}]",
            remedy="give absolute ratios with 0 <= ratio_low <= ratio_high, ratio_high above 0 and finite",
        )
