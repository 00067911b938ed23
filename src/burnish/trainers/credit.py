"""Scores become advantages: the order of ALGORITHMS section 1, one function a step, each change logged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from burnish.algorithms import shaping
from burnish.algorithms.advantages import Estimator
from burnish.algorithms.kl import resolve_kl
from burnish.algorithms.masking import masked_var
from burnish.config.schema import AlgorithmConfig
from burnish.errors import ConfigError
from burnish.models.batch import Batch
from burnish.models.scoring import response_mask
from burnish.outside import calling_outside, is_outside
from burnish.trainers.batching import Outcome
from burnish.trainers.returned import checked_advantages
from burnish.types import Metric, Reduction


def estimator_numbers(estimator: Estimator, algorithm: AlgorithmConfig) -> dict[str, Any]:
    """Keyword numbers of the estimator: fields of the run file that it knows, then `estimator_options`."""
    shared = {"gamma": algorithm.gamma, "lam": algorithm.lam, "allow_single": True}
    known = {*estimator.options, *estimator.required_options}
    numbers = {name: value for name, value in shared.items() if name in known} | algorithm.estimator_options
    estimator.check_options(numbers)
    return numbers


def assign_advantages(
    batch: Batch,
    outcome: Outcome,
    *,
    algorithm: AlgorithmConfig,
    estimator: Estimator,
    kl_coef: float,
) -> tuple[Batch, dict[str, Metric]]:
    """The batch with token rewards, advantages and (for token-level estimators) returns, and what to log.

    Order: reward clip, KL in the reward, reward whitening, the estimator, advantage whitening, advantage clip.
    """
    outcome, metrics = _clip(outcome, algorithm.reward_clip)
    rewards_BT, reward_metrics = _token_rewards(batch, outcome, algorithm, estimator, kl_coef)
    raw_BT, returns_BT = _estimate(
        batch, outcome, rewards_BT, estimator, estimator_numbers(estimator, algorithm), algorithm
    )
    mask = batch.loss_mask
    advantages_BT = shaping.whiten_advantages(raw_BT, mask) if algorithm.whiten_advantages else raw_BT
    if algorithm.advantage_clip is not None:
        outside_BT = advantages_BT.abs() > algorithm.advantage_clip
        metrics["advantage/clipped_fraction"] = Metric(Reduction.MEAN, (outside_BT & mask).sum(), mask.sum())
        advantages_BT = shaping.clip_advantages(advantages_BT, limit=algorithm.advantage_clip)
    scored = batch.replace(token_rewards=rewards_BT, advantages=advantages_BT, returns=returns_BT)
    return scored, metrics | reward_metrics | _metrics(raw_BT, advantages_BT, mask)


def _clip(outcome: Outcome, limit: float | None) -> tuple[Outcome, dict[str, Metric]]:
    if limit is None:
        return outcome, {}
    greedy, dense = outcome.greedy_scores_B, outcome.dense_rewards_BT
    clipped = dataclasses.replace(
        outcome,
        scores_B=outcome.scores_B.clamp(-limit, limit),
        greedy_scores_B=None if greedy is None else greedy.clamp(-limit, limit),
        dense_rewards_BT=None if dense is None else dense.clamp(-limit, limit),
    )
    outside_B = outcome.scores_B.abs() > limit
    return clipped, {"reward/clipped_fraction": Metric(Reduction.MEAN, outside_B.sum(), outside_B.numel())}


def _token_rewards(
    batch: Batch, outcome: Outcome, algorithm: AlgorithmConfig, estimator: Estimator, kl_coef: float
) -> tuple[Tensor, dict[str, Metric]]:
    """Rewards per token, KL inside and whitened where asked for. Dense rewards stay dense for token-level estimators;
    the others see one score a sequence, clipped as a whole."""
    mask = _rewarded(batch, estimator)
    kl_BT = None
    if algorithm.kl_in == "reward":
        kl_BT = resolve_kl(algorithm.kl_function).function(batch.old_logprobs, batch.ref_logprobs, mask=mask)
    dense_BT = outcome.dense_rewards_BT if estimator.token_level else None
    rewards_BT = shaping.token_rewards(outcome.scores_B, mask, kl_BT=kl_BT, kl_coef=kl_coef, dense_rewards_BT=dense_BT)
    if not algorithm.whiten_rewards:
        return rewards_BT, {}
    spread = masked_var(rewards_BT, mask).sqrt()
    return shaping.whiten_rewards(rewards_BT, mask), {"reward/token_std": Metric(Reduction.LAST, spread)}


def _rewarded(batch: Batch, estimator: Estimator) -> Tensor:
    """Tokens that carry rewards, (B, T): the trained ones. For an estimator of whole responses also those of a response
    that is left out of the loss: it still counts in its group, with the same KL and scale as its siblings."""
    if estimator.token_level:
        return batch.loss_mask
    return torch.where(batch.loss_mask.any(dim=1, keepdim=True), batch.loss_mask, response_mask(batch))


def _estimate(
    batch: Batch,
    outcome: Outcome,
    rewards_BT: Tensor,
    estimator: Estimator,
    numbers: Mapping[str, Any],
    algorithm: AlgorithmConfig,
) -> tuple[Tensor, Tensor | None]:
    """Hand the estimator what it asks for by parameter name; spread an outcome advantage over the trained tokens."""
    available = {
        "scores_B": _outcome_scores(rewards_BT, outcome, _rewarded(batch, estimator), algorithm),
        "group_ids_B": batch.group_ids,
        "lengths_B": _rewarded(batch, estimator).sum(dim=1),
        "greedy_scores_B": outcome.greedy_scores_B,
        "parts_BC": outcome.parts_BC,
        "weights_C": outcome.weights_C,
        "token_rewards_BT": rewards_BT,
        "values_BT": batch.values,
        "mask_BT": batch.loss_mask,
    }
    given = {name: tensor for name, tensor in available.items() if tensor is not None}
    outside = calling_outside(f"algorithm.estimator {estimator.name!r}", ConfigError)
    with outside if is_outside(estimator.name) else nullcontext():
        result = estimator(given, numbers)
    advantages, returns_BT = checked_advantages(
        result, batch.loss_mask, name=estimator.name, token_level=estimator.token_level
    )
    return advantages if estimator.token_level else shaping.spread(advantages, batch.loss_mask), returns_BT


def _outcome_scores(rewards_BT: Tensor, outcome: Outcome, mask_BT: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    """One score per sequence, with the KL and the whitening of its tokens where there are any."""
    if algorithm.kl_in != "reward" and not algorithm.whiten_rewards:
        return outcome.scores_B
    return torch.where(mask_BT.any(dim=1), shaping.sequence_scores(rewards_BT, mask_BT), outcome.scores_B)


def _metrics(raw_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> dict[str, Metric]:
    # float64: the spread is read off the second moment, which leaves few digits of a spread small against the mean
    raw, final, count = raw_BT[mask_BT].double(), advantages_BT[mask_BT].double(), mask_BT.sum()
    return {
        "advantage/raw_mean": Metric(Reduction.MEAN, raw.sum(), count),
        "advantage/raw_square_mean": Metric(Reduction.MEAN, raw.square().sum(), count),
        "advantage/mean": Metric(Reduction.MEAN, final.sum(), count),
        "advantage/square_mean": Metric(Reduction.MEAN, final.square().sum(), count),
        "advantage/absolute_max": Metric(Reduction.MAX, final.abs().max() if final.numel() else 0.0, count),
    }
