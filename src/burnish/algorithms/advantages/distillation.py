"""Advantages from the log-probabilities of a teacher."""

from __future__ import annotations

from torch import Tensor

from burnish.algorithms.advantages.returns import discounted_returns
from burnish.algorithms.masking import fill_masked


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
