"""Losses that clip each token's ratio around 1, as PPO does."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.policy_losses.result import PolicyLoss, Tokens, read_tokens
from burnish.errors import ConfigError


def ppo_clip(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
) -> PolicyLoss:
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), Schulman 2017 (https://arxiv.org/abs/1707.06347).

    Args:
        clip_high: if larger than clip_low, this is DAPO's clip-higher (https://arxiv.org/abs/2503.14476).
        dual_clip: c > 1: for A < 0 the loss is at most -A c (https://arxiv.org/abs/1912.09729).
        ratio_cap: an absolute ratio above 1 + clip_high at which rho is capped in the unclipped term. It bounds the
            loss of tokens with A < 0, with no gradient beyond the cap (https://arxiv.org/abs/2505.07291).

    Additional metric: `clip_fraction_dual` if `dual_clip` is given.
    """
    _check_caps(clip_high, dual_clip, ratio_cap)
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    loss_BT = clipped_surrogate(tokens, tokens.ratio_BT, clip_low, clip_high, ratio_cap)
    metrics = tokens.metrics(**clipped_sides(tokens, tokens.ratio_BT, clip_low, clip_high))
    if dual_clip is not None:
        ceiling_BT = -tokens.advantages_BT * dual_clip
        over_BT = (tokens.advantages_BT < 0) & (loss_BT > ceiling_BT)
        loss_BT = torch.where(over_BT, ceiling_BT, loss_BT)  # the ceiling is a constant: no gradient above it
        metrics["clip_fraction_dual"] = tokens.share(over_BT)
    return tokens.result(loss_BT, metrics)


def clipped_surrogate(
    tokens: Tokens, ratio_BT: Tensor, clip_low: float, clip_high: float, ratio_cap: float | None = None
) -> Tensor:
    """PPO's pessimistic bound with any ratio `[B, T]`, of the token or of its sequence."""
    unclipped_BT = ratio_BT if ratio_cap is None else ratio_BT.clamp(max=ratio_cap)
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    # PPO maximises the minimum of the two terms. A loss has the opposite sign, so it takes the maximum.
    return torch.maximum(-tokens.advantages_BT * unclipped_BT, -tokens.advantages_BT * clipped_BT)


def clipped_sides(tokens: Tokens, ratio_BT: Tensor, clip_low: float, clip_high: float) -> dict[str, Tensor]:
    """Where the clip removes the gradient: A < 0 below the lower bound, A > 0 above the upper one."""
    return {
        "clipped_low_BT": (tokens.advantages_BT < 0) & (ratio_BT < 1 - clip_low),
        "clipped_high_BT": (tokens.advantages_BT > 0) & (ratio_BT > 1 + clip_high),
    }


def _check_caps(clip_high: float, dual_clip: float | None, ratio_cap: float | None) -> None:
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"dual_clip is {dual_clip}", remedy="it is an absolute ratio: set it above 1 (3.0 is usual)")
    if ratio_cap is not None and not ratio_cap > 1 + clip_high:
        raise ConfigError(
            f"ratio_cap is {ratio_cap} with clip_high {clip_high}",
            remedy="it is an absolute ratio: set it above 1 + clip_high",
        )
