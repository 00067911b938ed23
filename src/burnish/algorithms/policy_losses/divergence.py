"""The loss that masks tokens by the distance of two policies' probabilities, where PPO clips by their ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import fill_masked
from burnish.algorithms.policy_losses.result import PolicyLoss, read_tokens
from burnish.errors import ConfigError, suggestion

DIVERGENCES = ("tv", "kl")


def dppo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    divergence: str = "tv",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_cap: float = 20.0,
) -> PolicyLoss:
    """-sg(min(rho, ratio_cap)) A logprob, without the tokens that have moved too far already, in the direction of A.

    Divergence PPO, Qi 2026 (https://arxiv.org/abs/2602.04879). The ratio of a rare token is large even if hardly any
    probability moved, and the ratio of a frequent one small even if much did, so PPO's clip stops the wrong tokens.
    Here a token is dropped if p > p_old by a divergence above clip_high and A > 0, or p < p_old by one above clip_low
    and A < 0.

    Args:
        divergence: `tv` is |p - p_old|, the total variation of "this token or another one". `kl` is KL(p_old || p) of
            these two outcomes, in nats; it needs lower bounds (0.05 is usual).
        ratio_cap: an absolute ratio at which the weight is capped.
    """
    if divergence not in DIVERGENCES:
        raise ConfigError(f"unknown divergence {divergence!r} of dppo", remedy=suggestion(divergence, DIVERGENCES))
    if not ratio_cap >= 1:
        raise ConfigError(f"ratio_cap of dppo is {ratio_cap}", remedy="it is an absolute ratio: set it to 1 or more")
    tokens = read_tokens(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT)
    new_BT, old_BT = tokens.logprobs_BT.detach(), fill_masked(old_logprobs_BT.detach(), mask_BT)
    distance_BT = (new_BT.exp() - old_BT.exp()).abs() if divergence == "tv" else bernoulli_kl(old_BT, new_BT)
    fallen_BT = (tokens.advantages_BT < 0) & (new_BT < old_BT) & (distance_BT > clip_low)
    risen_BT = (tokens.advantages_BT > 0) & (new_BT > old_BT) & (distance_BT > clip_high)
    weight_BT = tokens.ratio_BT.detach().clamp(max=ratio_cap)
    loss_BT = -weight_BT * tokens.advantages_BT * tokens.logprobs_BT
    kept_BT = torch.where(fallen_BT | risen_BT, torch.zeros_like(loss_BT), loss_BT)
    return tokens.result(kept_BT, tokens.metrics(clipped_low_BT=fallen_BT, clipped_high_BT=risen_BT))


def bernoulli_kl(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """KL(p || q) in nats of the two outcomes "this token" and "another one", from log p and log q of the token."""
    p, rest_p, rest_q = logprobs.exp(), -torch.expm1(logprobs), -torch.expm1(other_logprobs)
    return p * (logprobs - other_logprobs) + torch.xlogy(rest_p, rest_p) - torch.xlogy(rest_p, rest_q)
