"""Losses with one ratio per sequence or turn: what the reward scores is what the correction applies to."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.policy_losses.clipped import clipped_sides, clipped_surrogate
from burnish.algorithms.policy_losses.result import PolicyLoss, Tokens, read_tokens
from burnish.algorithms.ratios import clamp_log_ratio
from burnish.algorithms.turns import lengths_within_turns, sum_within_turns


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
    with sequence_mean_token_mean. The ratio metrics are those of the sequence ratio, weighted by tokens.
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

    A turn is what the environment answers, so one turn that moved far does not clip the others of its conversation.
    Ratios of turns: Li 2025 (https://arxiv.org/abs/2511.20718). Aggregate with turn_mean_token_mean. Without
    `turn_index_BT` (see `burnish.algorithms.turns`) each row is one turn, and this is `gspo`.
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
    log-ratio counts as at most clip_high if A > 0, and as at least -clip_low if A < 0. The ratio metrics are those of
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
