"""Shaping of rewards before the estimator, and of advantages after it.

In order: clip the score, put it and the KL penalty on the tokens, whiten the rewards without shifting their mean, call
the estimator, spread its advantages over the tokens, whiten the advantages, clip them. Keep the tensor before each step
to log what the step changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.algorithms.masking import as_float, fill_masked, whiten
from burnish.errors import ConfigError, ModelError


def clip_scores(scores_B: Tensor, *, limit: float) -> Tensor:
    """Clamp scores to [-limit, limit]. Apply it once, before any baseline."""
    return as_float(scores_B).clamp(-limit, limit)


def last_trained_BT(mask_BT: Tensor) -> Tensor:
    """True at the last trained token of each row, and nowhere in a row without trained tokens."""
    mask = mask_BT.bool()
    remaining = mask.flip(1).cumsum(dim=1).flip(1)  # trained tokens from this one to the end of the row
    return mask & (remaining == 1)


def token_rewards(
    scores_B: Tensor,
    mask_BT: Tensor,
    *,
    kl_BT: Tensor | None = None,
    kl_coef: float = 0.0,
    dense_rewards_BT: Tensor | None = None,
) -> Tensor:
    """Rewards per token `[B, T]`: the score on the last trained token, `-kl_coef * kl` on every trained one.

    If given, `dense_rewards_BT` (whose rows add up to the scores) replace the score on the last token.
    """
    if dense_rewards_BT is None:
        scores_BT = as_float(scores_B).unsqueeze(1).expand(mask_BT.shape)
        rewards = fill_masked(scores_BT, last_trained_BT(mask_BT))
    else:
        rewards = fill_masked(dense_rewards_BT, mask_BT)
    return rewards if kl_BT is None else rewards - kl_coef * fill_masked(kl_BT, mask_BT)


def sequence_scores(token_rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum of the token rewards of each sequence `[B]`, which an outcome estimator gets if the KL is in the reward."""
    return fill_masked(token_rewards_BT, mask_BT).sum(dim=1)


def whiten_rewards(token_rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Scale token rewards to variance 1 (biased) around the same mean (https://arxiv.org/abs/1909.08593).

    Every token changes, even those without a reward, so longer responses get a larger sum. For estimators that judge a
    response by its score use `whiten_scores`.
    """
    return whiten(token_rewards_BT, mask_BT, shift_mean=False)


def whiten_scores(scores_B: Tensor) -> Tensor:
    """Scale scores of responses to variance 1 (biased) around the same mean. Equal scores stay equal at any length."""
    return whiten(scores_B, torch.ones_like(scores_B, dtype=torch.bool), shift_mean=False)


def spread(advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Put each sequence's advantage on all of its trained tokens `[B, T]`, 0 in masked slots."""
    return fill_masked(as_float(advantages_B).unsqueeze(1).expand(mask_BT.shape), mask_BT)


def whiten_advantages(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Shift and scale the step's advantages to mean 0 and variance 1 (biased) over the trained tokens."""
    return whiten(advantages_BT, mask_BT)


def clip_advantages(advantages: Tensor, *, limit: float) -> Tensor:
    """Clamp advantages to [-limit, limit]."""
    if not limit > 0:
        raise ConfigError(f"advantage clip is {limit}", remedy="set it to a number above 0, or leave it out")
    return as_float(advantages).clamp(-limit, limit)


def overlong_penalty(lengths_B: Tensor, *, max_response_tokens: int, buffer_tokens: int) -> Tensor:
    """0 up to max - buffer tokens, then linearly down to -1 at max (DAPO, https://arxiv.org/abs/2503.14476). `[B]`."""
    if not 0 < buffer_tokens <= max_response_tokens:
        raise ConfigError(
            f"overlong buffer is {buffer_tokens} tokens with max_response_tokens {max_response_tokens}",
            remedy="choose a buffer above 0 and at most max_response_tokens",
        )
    excess = as_float(lengths_B) - (max_response_tokens - buffer_tokens)
    return -(excess / buffer_tokens).clamp(0.0, 1.0)


def reward_normalisation(rewards: Sequence[float], *, scale: bool = True) -> tuple[float, float]:
    """`(gain, mean)` such that gain * (reward - mean) has mean 0 and, with `scale`, (biased) standard deviation 1
    (https://arxiv.org/abs/1909.08593). Without `scale` the gain is 1.

    Raises ModelError with `scale` if all rewards are equal, because they have no scale.
    """
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if scale and spread < 1e-12 * max(1.0, abs(mean)):
        raise ModelError(
            f"the reward model gives all {len(rewards)} responses the same reward ({mean:g}), so it has no scale",
            remedy="use more or longer responses (normalization.responses), or normalization.kind: bias",
        )
    return (1.0 / spread if scale else 1.0), mean
