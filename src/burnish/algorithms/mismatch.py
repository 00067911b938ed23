"""Comparison of the sampler's log-probabilities with the trainer's on the same tokens and weights.

They differ because of kernels, precision and staleness, so rollouts are slightly off-policy even before the first
update. Importance weights correct for this. They are bounded by construction, also in masked slots, and never carry a
gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from burnish.algorithms import kl
from burnish.algorithms.masking import fill_masked, sum_within_turns
from burnish.algorithms.ratios import clamp_log_ratio, log_ratio
from burnish.algorithms.ratios import ratio as policy_ratio
from burnish.errors import ConfigError, suggestion
from burnish.types import Metric, Reduction

LEVELS = ("token", "turn", "sequence")
MODES = ("truncate", "mask")
SEQUENCE_MODES = ("mask_mean", "mask_max")


def mismatch_metrics(trainer_logprobs_BT: Tensor, rollout_logprobs_BT: Tensor, mask_BT: Tensor) -> dict[str, Metric]:
    """Differences between sampler and trainer, as sums that merge over micro-batches into the numbers of the step.

    `logprob_diff_mean` and `logprob_diff_max` are |trainer - rollout| in nats. `logprob_k3` estimates
    KL(sampler || trainer), because the sampler drew the tokens. `weight_mean` and `weight_square_mean` are moments of
    the ratios trainer / sampler; `effective_sample_size` combines them into one number.
    """
    trainer, rollout = trainer_logprobs_BT.detach(), rollout_logprobs_BT.detach()
    distance = log_ratio(trainer, rollout, mask_BT)
    # float64: squares of ratios near exp(20) would leave few digits of a float32 sum
    weights = fill_masked(policy_ratio(trainer, rollout, mask_BT), mask_BT).double()
    count = mask_BT.sum()
    return {
        "logprob_diff_mean": Metric(Reduction.MEAN, distance.abs().sum(), count),
        "logprob_diff_max": Metric(Reduction.MAX, distance.abs().max(), count),
        "logprob_k3": Metric(Reduction.MEAN, kl.k3(rollout, trainer, mask=mask_BT).double().sum(), count),
        "weight_mean": Metric(Reduction.MEAN, weights.sum(), count),
        "weight_square_mean": Metric(Reduction.MEAN, weights.square().sum(), count),
    }


def effective_sample_size(weight_mean: float, weight_square_mean: float) -> float:
    """(sum w)^2 / (n sum w^2) from the moments of the weights: the fraction of tokens that effectively count.

    In (0, 1], and 1 if sampler and trainer agree.
    """
    return weight_mean**2 / weight_square_mean


def ratio_deviation(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Metric:
    """Largest |rho - 1|. On the first minibatch of a synchronous step anything not close to 0 is a bug."""
    deviation = (policy_ratio(logprobs_BT, old_logprobs_BT, mask_BT).detach() - 1).abs()
    return Metric(Reduction.MAX, deviation.max(), mask_BT.bool().sum())


def correction_weights(
    old_logprobs_BT: Tensor,
    rollout_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    level: str = "token",
    mode: str = "truncate",
    low: float = 0.0,
    high: float = 2.0,
    turn_index_BT: Tensor | None = None,
) -> Tensor:
    """Importance weights exp(old - rollout) `[B, T]` by which to multiply the loss per token; 0 in masked slots.

    Args:
        level: `token` weights each token by its own ratio, `turn` all tokens of a turn by the product over the turn,
            `sequence` all tokens by the product over the response.
        mode: `truncate` clamps weights to [low, high] (https://fengyao.notion.site/off-policy-rl); `mask` sets weights
            outside [low, high] to 0, which drops the token, the turn or the sequence. With `sequence`, two more judge a
            response as a whole and leave its tokens their own ratios, up to exp(20): `mask_mean` drops it if the
            geometric mean of the ratios is outside [low, high], `mask_max` if any of them is.
        low, high: bounds as absolute ratios, low <= 1 <= high.
        turn_index_BT: for `turn`, see `burnish.algorithms.masking`; None if each row is one turn.

    Raises ConfigError for an unknown level or mode, and for bounds without 1 between them.
    """
    _check_correction(level, mode, low, high)
    d = log_ratio(old_logprobs_BT.detach(), rollout_logprobs_BT.detach(), mask_BT)
    if mode in SEQUENCE_MODES:
        ratios_BT = clamp_log_ratio(d).exp()
        geometric_mean = clamp_log_ratio(_mean_of_rows(d, mask_BT)).exp()
        judged = geometric_mean if mode == "mask_mean" else ratios_BT  # 1 in masked slots: inside
        kept_B1 = ((judged >= low) & (judged <= high)).all(dim=1, keepdim=True)
        return fill_masked(torch.where(kept_B1, ratios_BT, torch.zeros_like(ratios_BT)), mask_BT)
    if level == "turn" and turn_index_BT is not None:
        d = sum_within_turns(d, turn_index_BT, mask_BT).to(d.dtype)
    elif level != "token":
        d = d.sum(dim=1, keepdim=True).expand_as(d)
    weights = clamp_log_ratio(d).exp()
    if mode == "truncate":
        bounded = weights.clamp(low, high)
    else:
        bounded = torch.where((weights >= low) & (weights <= high), weights, torch.zeros_like(weights))
    return fill_masked(bounded, mask_BT)


def off_policy_tokens(
    logprobs_BT: Tensor, rollout_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, *, delta: float
) -> Tensor:
    """True `[B, T]` at tokens with A < 0 of responses with mean_t(rollout - logprob) > delta, in nats, to be dropped.

    DeepSeek-V3.2 2025 (https://arxiv.org/abs/2512.02556): the policy learns from its own mistakes, but the ones
    that it would hardly make any more only disturb it. `logprobs_BT` are the current ones, after each update.
    """
    d = log_ratio(rollout_logprobs_BT.detach(), logprobs_BT.detach(), mask_BT)
    advantages = fill_masked(advantages_BT.detach(), mask_BT)
    return (advantages < 0) & (_mean_of_rows(d, mask_BT) > delta)


def _mean_of_rows(d_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean `[B, 1]` over the trained tokens of each row, 0 without any. `d_BT` must be 0 where masked."""
    return d_BT.sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)


def _check_correction(level: str, mode: str, low: float, high: float) -> None:
    modes = (*MODES, *SEQUENCE_MODES) if level == "sequence" else MODES
    for field, value, known in (("level", level, LEVELS), ("mode", mode, modes)):
        if value not in known:
            raise ConfigError(f"unknown correction {field} {value!r}", remedy=suggestion(value, known))
    if not (0 <= low <= 1 <= high and math.isfinite(high)):
        raise ConfigError(
            f"correction bounds are [{low}, {high}]",
            remedy="give absolute ratios with 0 <= low <= 1 <= high, high finite",
        )
