"""Losses that keep the policy close to the old one without a hard clip."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.policy_losses.result import PolicyLoss, read_tokens


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
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    loss_BT = -tokens.advantages_BT * tokens.logprobs_BT + tau / 2 * tokens.log_ratio_BT.square()
    return tokens.result(loss_BT, tokens.metrics())
