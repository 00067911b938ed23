"""Estimators on token rewards: they go backwards in time and return `(advantages_BT, returns_BT)`, 0 in masked slots.

Time passes only at trained tokens. Across a masked span inside a response (such as the output of a tool) values and
advantages are carried unchanged. Past the end they are 0, so padding and its width have no effect.

With `turn_index_BT` (see `burnish.algorithms.masking`), gamma discounts once from a turn to the next, and not within
one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from burnish.algorithms.advantages.outcome import remax
from burnish.algorithms.masking import fill_masked, whiten


def gae(
    token_rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    turn_index_BT: Tensor | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, Schulman 2015 (https://arxiv.org/abs/1506.02438).

    delta_t = r_t + gamma V' - V_t, A_t = delta_t + gamma lam A', returns = A + V. Advantages are not whitened. With
    `turn_index_BT`, gamma is 1 where the next trained token is of the same turn, while lam applies to every token.
    """
    rewards, values, mask = fill_masked(token_rewards_BT, mask_BT), fill_masked(values_BT, mask_BT), mask_BT.bool()
    next_value, next_advantage = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    columns: list[Tensor] = []
    discounts = _discounts(gamma, next_value, mask, turn_index_BT)
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + discounts[t] * next_value - values[:, t]
        # A masked slot passes both on unchanged, so a tool's output neither discounts nor needs a value.
        next_advantage = torch.where(mask[:, t], delta + discounts[t] * lam * next_advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        columns.append(next_advantage)
    advantages_BT = fill_masked(torch.stack(columns[::-1], dim=1), mask_BT)
    return advantages_BT, advantages_BT + values


def _discounts(gamma: float, like_B: Tensor, mask_BT: Tensor, turn_index_BT: Tensor | None) -> Sequence[Tensor | float]:
    """Discount of the future at each column: `[B]` tensors of the type of `like_B`, or one number for all."""
    if turn_index_BT is None:
        return [gamma] * mask_BT.shape[1]
    columns: list[Tensor | float] = []
    next_turn = torch.full_like(turn_index_BT[:, 0], -1)
    for t in reversed(range(mask_BT.shape[1])):
        same_B = turn_index_BT[:, t] == next_turn
        columns.append(torch.where(same_B, like_B.new_ones(()), like_B.new_full((), gamma)))
        next_turn = torch.where(mask_BT[:, t], turn_index_BT[:, t], next_turn)
    return columns[::-1]


def discounted_returns(
    token_rewards_BT: Tensor, mask_BT: Tensor, turn_index_BT: Tensor | None = None, *, gamma: float = 1.0
) -> Tensor:
    """Return-to-go r_t + gamma R' at each trained token `[B, T]`: GAE with a critic that always gives 0, and lam 1."""
    no_values = torch.zeros_like(token_rewards_BT)
    return gae(token_rewards_BT, no_values, mask_BT, turn_index_BT, gamma=gamma, lam=1.0)[0]


def reinforce_plus_plus(
    token_rewards_BT: Tensor, mask_BT: Tensor, turn_index_BT: Tensor | None = None, *, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return-to-go of the token rewards and KL, whitened over the step, Hu 2025 (https://arxiv.org/abs/2501.03262).

    Whitened over trained tokens to mean 0 and variance 1 (biased). The returns are not whitened.
    """
    returns_BT = discounted_returns(token_rewards_BT, mask_BT, turn_index_BT, gamma=gamma)
    return whiten(returns_BT, mask_BT), returns_BT


def remax_per_token(token_rewards_BT: Tensor, greedy_scores_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return-to-go of the token rewards (with the KL) minus the greedy response's score, Li 2023
    (https://arxiv.org/abs/2310.10505).

    A token is charged for the KL from itself onwards, not for the KL of earlier tokens. If all of the reward is on the
    last token, this is `remax` of the scores, spread over the tokens. The returns do not include the baseline.
    """
    returns_BT = discounted_returns(token_rewards_BT, mask_BT)
    advantages_BT = remax(returns_BT, greedy_scores_B.unsqueeze(1).expand(returns_BT.shape))
    return fill_masked(advantages_BT, mask_BT), returns_BT


def opd(
    token_rewards_BT: Tensor,
    teacher_logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    mask_BT: Tensor,
    teacher_weights_B: Tensor | None = None,
    *,
    reward_coef: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """w (log T(y_t) - log S_old(y_t)) at each trained token: on-policy distillation, Lu 2025
    (https://thinkingmachines.ai/blog/on-policy-distillation/), after Agarwal 2023 (https://arxiv.org/abs/2306.13649).

    The student samples, and its policy gradient with this advantage is the gradient of the reverse KL(S || T) of each
    token given the ones before it: no later token counts (discount 0), and no baseline is subtracted. `reward_coef`
    adds the return-to-go of the token rewards times this number; with 0, rewards have no part in it.
    """
    advantages_BT = fill_masked(teacher_logprobs_BT, mask_BT) - fill_masked(old_logprobs_BT, mask_BT)
    if teacher_weights_B is not None:
        advantages_BT = teacher_weights_B[:, None] * advantages_BT
    if reward_coef:
        advantages_BT = advantages_BT + reward_coef * discounted_returns(token_rewards_BT, mask_BT)
    return advantages_BT, advantages_BT
