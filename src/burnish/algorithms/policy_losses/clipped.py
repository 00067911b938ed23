"""Losses that clip a ratio around 1, as PPO does: one ratio per token, or per sequence or turn, so that the correction
applies to the same unit as the reward."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import lengths_within_turns, sum_within_turns
from burnish.algorithms.policy_losses.result import PolicyLoss, Tokens, read_tokens
from burnish.algorithms.ratios import clamp_log_ratio
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
    """Masks of the tokens whose gradient the clip removes: A < 0 below the lower bound, A > 0 above the upper one."""
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


def gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> PolicyLoss:
    """PPO's clip on the length-normalised sequence ratio exp(mean_t d), Zheng 2025 (https://arxiv.org/abs/2507.18071).

    This is the token form: each token has the value of the sequence ratio and its own gradient. With one advantage per
    sequence this is exactly the gradient of the mean, and it is still meaningful if advantages vary by token. Aggregate
    with sequence_mean_token_mean. The ratio metrics describe the sequence ratio, weighted by tokens.
    """
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    return _shared_ratio(tokens, _mean_over_tokens(tokens.log_ratio_BT, tokens), clip_low, clip_high)


def turn_gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    turn_index_BT: Tensor | None = None,
) -> PolicyLoss:
    """`gspo` with one ratio per turn of the policy: exp of the mean of d over the tokens of the turn.

    The unit is a turn, which the environment answers: one that moved far does not clip the others of its conversation.
    Ratios of turns: Li 2025 (https://arxiv.org/abs/2511.20718). Aggregate with turn_mean_token_mean. Without
    `turn_index_BT` (see `burnish.algorithms.masking`) each row is one turn, and this is `gspo`.
    """
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    if turn_index_BT is None:
        return _shared_ratio(tokens, _mean_over_tokens(tokens.log_ratio_BT, tokens), clip_low, clip_high)
    sums_BT = sum_within_turns(tokens.log_ratio_BT.detach(), turn_index_BT, tokens.mask_BT)
    means_BT = sums_BT / lengths_within_turns(turn_index_BT, tokens.mask_BT)
    return _shared_ratio(tokens, means_BT.to(tokens.ratio_BT.dtype), clip_low, clip_high)


def _shared_ratio(tokens: Tokens, log_ratio_BT: Tensor, clip_low: float, clip_high: float) -> PolicyLoss:
    """PPO's clip on a ratio that several tokens share, each with its own gradient."""
    own_BT = tokens.logprobs_BT - tokens.logprobs_BT.detach()  # value 0, gradient 1
    ratio_BT = clamp_log_ratio(log_ratio_BT.detach() + own_BT).exp()
    loss_BT = clipped_surrogate(tokens, ratio_BT, clip_low, clip_high)
    sides = clipped_sides(tokens, ratio_BT, clip_low, clip_high)
    return tokens.result(loss_BT, tokens.metrics(ratio_BT=ratio_BT, **sides))


def gmpo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> PolicyLoss:
    """-A times the geometric mean of the clipped token ratios, Zhao 2025 (https://arxiv.org/abs/2507.20673).

    `clip_low` and `clip_high` are log-ratios (0.4 allows ratios from 0.67 to 1.49) and pessimistic as in PPO: a token's
    log-ratio counts as at most clip_high if A > 0, and as at least -clip_low if A < 0. The ratio metrics describe
    the geometric mean.
    """
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    gaining_BT, losing_BT = tokens.advantages_BT > 0, tokens.advantages_BT < 0
    bounded_BT = torch.where(gaining_BT, tokens.log_ratio_BT.clamp(max=clip_high), tokens.log_ratio_BT)
    bounded_BT = torch.where(losing_BT, bounded_BT.clamp(min=-clip_low), bounded_BT)
    ratio_BT = _mean_over_tokens(bounded_BT, tokens).exp()
    metrics = tokens.metrics(
        ratio_BT=ratio_BT,
        clipped_low_BT=losing_BT & (tokens.log_ratio_BT < -clip_low),
        clipped_high_BT=gaining_BT & (tokens.log_ratio_BT > clip_high),
    )
    return tokens.result(-tokens.advantages_BT * ratio_BT, metrics)


def _mean_over_tokens(values_BT: Tensor, tokens: Tokens) -> Tensor:
    """Mean over the trained tokens of a row, in every slot of the row. `values_BT` must be 0 where masked."""
    lengths_B = tokens.mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return (values_BT.sum(dim=1, keepdim=True) / lengths_B).expand_as(values_BT)
