"""Losses that single out the few tokens that reduce entropy most: of high log-probability and high advantage.

Cui 2025 (https://arxiv.org/abs/2505.22617). The selection is a statistic of the entire minibatch: compute it once and
pass each micro-batch its part as `selection_BT`. Without `selection_BT`, tokens are selected within the given tensors,
which is correct only if these are the minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import fill_masked, masked_mean
from burnish.algorithms.policy_losses.clipped import clipped_sides, clipped_surrogate
from burnish.algorithms.policy_losses.result import PolicyLoss, read_tokens
from burnish.errors import ConfigError


def covariance_selection(
    logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    fraction: float,
    covariance_low: float = 0.0,
    covariance_high: float = float("inf"),
    excluded_BT: Tensor | None = None,
) -> Tensor:
    """Select the trained tokens `[B, T]` of highest (A - mean A)(logprob - mean logprob) inside the two bounds.

    At most `fraction` of the trained tokens but at least one (more only on ties), strictly above `covariance_low`. The
    authors draw at random within the bounds. Taking the highest needs no random numbers and does not depend on the
    order of rows. Tokens in `excluded_BT` are not selected, but count in the means and in the number to select.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"fraction of selected tokens is {fraction}", remedy="set it above 0 and at most 1")
    if not covariance_low < covariance_high:
        raise ConfigError(
            f"covariance_low is {covariance_low}", remedy=f"set it below covariance_high {covariance_high}"
        )
    logprobs, advantages = fill_masked(logprobs_BT.detach(), mask_BT), fill_masked(advantages_BT.detach(), mask_BT)
    covariance_BT = (logprobs - masked_mean(logprobs, mask_BT)) * (advantages - masked_mean(advantages, mask_BT))
    eligible_BT = mask_BT.bool() & (covariance_BT > covariance_low) & (covariance_BT < covariance_high)
    if excluded_BT is not None:
        eligible_BT &= ~excluded_BT
    ranked = covariance_BT[eligible_BT].sort(descending=True).values
    wanted = max(1, int(fraction * int(mask_BT.bool().sum())))
    if ranked.numel() <= wanted:
        return eligible_BT
    return eligible_BT & (covariance_BT >= ranked[wanted - 1])


def unclipped_selection(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    fraction: float = 2e-4,
    covariance_low: float = 1.0,
    covariance_high: float = 5.0,
) -> Tensor:
    """`covariance_selection` among the tokens that keep a gradient under PPO's clip, as in the authors' code, so that
    no token without a gradient is selected."""
    tokens = read_tokens(logprobs_BT.detach(), old_logprobs_BT, advantages_BT, mask_BT)
    sides = clipped_sides(tokens, tokens.ratio_BT, clip_low, clip_high)
    return covariance_selection(
        logprobs_BT,
        advantages_BT,
        mask_BT,
        fraction=fraction,
        covariance_low=covariance_low,
        covariance_high=covariance_high,
        excluded_BT=sides["clipped_low_BT"] | sides["clipped_high_BT"],
    )


def kl_cov(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    coef: float = 1.0,
    fraction: float = 2e-4,
    selection_BT: Tensor | None = None,
) -> PolicyLoss:
    """-A rho, plus coef |d| on the selected tokens, which is the authors' KL penalty towards the old policy.

    Additional metric: `selected_fraction`.
    """
    if coef < 0:
        raise ConfigError(f"coef of kl_cov is {coef}, which rewards distance", remedy="set it to 0 or more (usually 1)")
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    if selection_BT is None:
        selection_BT = covariance_selection(logprobs_BT, advantages_BT, mask_BT, fraction=fraction)
    penalty_BT = torch.where(selection_BT.bool(), coef * tokens.log_ratio_BT.abs(), torch.zeros_like(tokens.ratio_BT))
    metrics = {**tokens.metrics(), "selected_fraction": tokens.share(selection_BT)}
    return tokens.result(-tokens.advantages_BT * tokens.ratio_BT + penalty_BT, metrics)


def clip_cov(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    fraction: float = 2e-4,
    covariance_low: float = 1.0,
    covariance_high: float = 5.0,
    selection_BT: Tensor | None = None,
) -> PolicyLoss:
    """PPO's clipped loss, but 0 (no gradient) at the selected tokens, none of which the clip already excludes.
    Dropped tokens still count in denominators.

    Additional metric: `selected_fraction`.
    """
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    if selection_BT is None:
        selection_BT = unclipped_selection(
            logprobs_BT,
            old_logprobs_BT,
            advantages_BT,
            mask_BT,
            clip_low=clip_low,
            clip_high=clip_high,
            fraction=fraction,
            covariance_low=covariance_low,
            covariance_high=covariance_high,
        )
    loss_BT = clipped_surrogate(tokens, tokens.ratio_BT, clip_low, clip_high)
    sides = clipped_sides(tokens, tokens.ratio_BT, clip_low, clip_high)
    metrics = {**tokens.metrics(**sides), "selected_fraction": tokens.share(selection_BT)}
    return tokens.result(torch.where(selection_BT.bool(), torch.zeros_like(loss_BT), loss_BT), metrics)
