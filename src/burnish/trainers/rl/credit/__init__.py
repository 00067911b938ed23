"""From scores to advantages, in the order of docs/algorithms.md. One function per step; each change is logged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.algorithms import shaping
from burnish.algorithms.advantages import Estimator
from burnish.algorithms.kl import resolve_kl
from burnish.algorithms.masking import as_single_turn, masked_var
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.errors import ConfigError
from burnish.forward.batch import Batch, present
from burnish.forward.scoring import response_mask
from burnish.outside.plugins import calling_outside, is_outside
from burnish.trainers.rl.algorithm import estimator_numbers
from burnish.trainers.rl.batching import BatchRewards, build_rewards, with_parts, with_states
from burnish.trainers.rl.credit.by_domain import DomainCredit, Row
from burnish.trainers.rl.credit.user_functions import checked_advantages
from burnish.trainers.telemetry.moments import describe_advantages, describe_values
from burnish.types import Metric, Reduction


def assign_advantages(
    batch: Batch,
    rewards: BatchRewards,
    *,
    algorithm: AlgorithmConfig,
    estimator: Estimator,
    kl_coef: float,
    whiten: bool = True,
) -> tuple[Batch, dict[str, Metric]]:
    """The batch with token rewards, advantages and (for token-level estimators) returns, and what to log.

    Order: reward clip, KL in the reward, reward whitening, the estimator, advantage whitening, advantage clip.
    Rewards are whitened as the estimator reads them: per token, or one score per response. With `whiten` False, both
    whitenings and the clip of advantages are left to `whiten_minibatch`.
    """
    metrics: dict[str, Metric] = {}
    # First of all: a limit on what rewards have said, not on the KL that is subtracted from it.
    if algorithm.reward_clip is not None:
        rewards, metrics = _clip(rewards, algorithm.reward_clip)
    scores_B, kl_BT, rewarded_BT = rewards.scores_B, None, _rewarded(batch, estimator)
    if algorithm.kl_in == "reward":
        # Under the weights that sampled, without gradient: as a part of the reward the KL is a number, not a loss.
        kl_BT = resolve_kl(algorithm.kl_function).function(batch.old_logprobs, batch.ref_logprobs, mask=rewarded_BT)
    # Token-level estimators see dense rewards; the others see one score per sequence, which was clipped as a sum.
    dense_BT = rewards.dense_rewards_BT if estimator.token_level else None
    rewards_BT = shaping.token_rewards(scores_B, rewarded_BT, kl_BT=kl_BT, kl_coef=kl_coef, dense_rewards_BT=dense_BT)
    if kl_BT is not None:
        scores_B = _with_kl(rewards, rewards_BT, rewarded_BT)
    if algorithm.whiten_rewards and whiten:
        rewards_BT, scores_B, reward_metrics = _whiten(rewards_BT, scores_B, batch, rewards, estimator)
        metrics |= reward_metrics
    by_turns = algorithm.discount != "token" or estimator.compares_turns
    tensors = {
        "scores_B": scores_B,  # outcome estimators read these and the others token_rewards_BT: both are shaped alike
        "group_ids_B": batch.group_ids,
        "lengths_B": rewarded_BT.sum(dim=1),
        "greedy_scores_B": rewards.greedy_scores_B,
        "parts_BC": rewards.parts_BC,
        "weights_C": rewards.weights_C,
        "token_rewards_BT": rewards_BT,
        "values_BT": batch.values,
        "mask_BT": batch.loss_mask,
        "turn_index_BT": _turns(batch, estimator, rewards.counted_B) if by_turns else None,
        "observation_ids_BT": rewards.observation_ids_BT,
        "history_ids_BT": rewards.history_ids_BT,
        "old_logprobs_BT": batch.old_logprobs,
        "ref_logprobs_BT": batch.ref_logprobs,
        "teacher_logprobs_BT": batch.teacher_logprobs,
        "teacher_weights_B": batch.teacher_weights,
    }
    raw_BT, returns_BT = _estimate(estimator, tensors, algorithm, rewards.counted_B)
    batch = batch.replace(token_rewards=rewards_BT, advantages=raw_BT, returns=returns_BT)
    if not whiten:
        return batch, metrics
    batch, advantage_metrics = _shape(batch, algorithm)
    return batch, metrics | advantage_metrics


def whiten_minibatch(
    minibatch: Batch, *, algorithm: AlgorithmConfig, estimator: Estimator
) -> tuple[Batch, dict[str, Metric]]:
    """A minibatch from `assign_advantages` with `whiten` False, whitened by its own mean and deviation.

    Whitened rewards give new advantages and returns, so the estimator is called again. It must read each response by
    itself (`reads_responses_alone`), because siblings may be in another minibatch. Call it on whole minibatches, before
    they are cut into micro-batches.
    """
    metrics: dict[str, Metric] = {}
    if algorithm.whiten_rewards:
        rewards_BT, metrics = _whiten_tokens(present(minibatch.token_rewards, "token_rewards"), minibatch.loss_mask)
        by_turns = algorithm.discount != "token" or estimator.compares_turns
        tensors = {
            "token_rewards_BT": rewards_BT,
            "values_BT": minibatch.values,
            "mask_BT": minibatch.loss_mask,
            "turn_index_BT": _turns(minibatch, estimator, None) if by_turns else None,  # they were checked before
        }
        advantages_BT, returns_BT = _estimate(estimator, tensors, algorithm, None)
        minibatch = minibatch.replace(token_rewards=rewards_BT, advantages=advantages_BT, returns=returns_BT)
    minibatch, advantage_metrics = _shape(minibatch, algorithm)
    return minibatch, metrics | advantage_metrics


def _shape(batch: Batch, algorithm: AlgorithmConfig) -> tuple[Batch, dict[str, Metric]]:
    """The batch with its raw advantages whitened and clipped, as far as the run file asks for it. Measures them, and
    values and returns."""
    raw_BT, mask = present(batch.advantages, "advantages"), batch.loss_mask
    metrics: dict[str, Metric] = {}
    advantages_BT = shaping.whiten_advantages(raw_BT, mask) if algorithm.whiten_advantages else raw_BT
    if algorithm.advantage_clip is not None:
        outside_BT = advantages_BT.abs() > algorithm.advantage_clip
        metrics["advantage/clipped_fraction"] = Metric(Reduction.MEAN, (outside_BT & mask).sum(), mask.sum())
        advantages_BT = shaping.clip_advantages(advantages_BT, limit=algorithm.advantage_clip)
    metrics |= describe_advantages(raw_BT, advantages_BT, mask)
    return batch.replace(advantages=advantages_BT), metrics | describe_values(batch)


def _with_kl(rewards: BatchRewards, rewards_BT: Tensor, rewarded_BT: Tensor) -> Tensor:
    """Scores for estimators of whole responses, which see the KL too: each includes its tokens' KL, if any."""
    with_kl_B = torch.where(rewarded_BT.any(dim=1), shaping.sequence_scores(rewards_BT, rewarded_BT), rewards.scores_B)
    if rewards.counted_B is None:
        return with_kl_B
    return rewards.scores_B + _summed(with_kl_B - rewards.scores_B, rewards.counted_B)


def _clip(rewards: BatchRewards, limit: float) -> tuple[BatchRewards, dict[str, Metric]]:
    given = {
        "scores_B": rewards.scores_B,
        "greedy_scores_B": rewards.greedy_scores_B,
        "dense_rewards_BT": rewards.dense_rewards_BT,
    }
    inside = {name: shaping.clip_scores(tensor, limit=limit) for name, tensor in given.items() if tensor is not None}
    clipped = dataclasses.replace(rewards, **inside)
    outside_B = rewards.scores_B.abs() > limit
    return clipped, {"reward/clipped_fraction": Metric(Reduction.MEAN, outside_B.sum(), outside_B.numel())}


def _whiten(
    rewards_BT: Tensor, scores_B: Tensor, batch: Batch, rewards: BatchRewards, estimator: Estimator
) -> tuple[Tensor, Tensor, dict[str, Metric]]:
    """Whiten the rewards or the scores, whichever the estimator reads, and report the deviation that they had.

    An estimator of whole responses gets whitened scores. If its tokens were whitened, each token would add its share of
    the shift, and equal scores of responses of different lengths would become different.
    """
    if estimator.token_level:
        whitened_BT, metrics = _whiten_tokens(rewards_BT, batch.loss_mask)
        return whitened_BT, scores_B, metrics
    counted_B = torch.arange(len(scores_B)) if rewards.counted_B is None else rewards.counted_B
    rows, place_B = counted_B.unique(return_inverse=True)  # a conversation of several rows counts once
    once_B = scores_B[rows]
    spread = masked_var(once_B, torch.ones_like(once_B, dtype=torch.bool)).sqrt()
    return rewards_BT, shaping.whiten_scores(once_B)[place_B], {"reward/score_std": Metric(Reduction.LAST, spread)}


def _whiten_tokens(rewards_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, Metric]]:
    spread = Metric(Reduction.LAST, masked_var(rewards_BT, mask_BT).sqrt())
    return shaping.whiten_rewards(rewards_BT, mask_BT), {"reward/token_std": spread}


def _rewarded(batch: Batch, estimator: Estimator) -> Tensor:
    """Tokens that carry rewards, (B, T): the trained ones. For an estimator of whole responses or of turns also those
    of a response that is left out of the loss: it still counts in its group, with the KL and scale of its siblings."""
    if estimator.token_level and not estimator.compares_turns:
        return batch.loss_mask
    return torch.where(batch.loss_mask.any(dim=1, keepdim=True), batch.loss_mask, _sampled(batch))


def _sampled(batch: Batch) -> Tensor:
    """Tokens that the policy sampled, (B, T)."""
    return response_mask(batch) if batch.turn_index is None else batch.turn_index >= 0


def _turns(batch: Batch, estimator: Estimator, counted_B: Tensor | None) -> Tensor:
    """The turn of each token; rows without turns are one each. ConfigError if turns of one conversation are in several
    rows."""
    if counted_B is not None:
        raise ConfigError(
            f"the estimator {estimator.name!r} gives credit by turns, but some conversations of this step are several "
            "rows: an agent has changed its history, or the chat template writes earlier turns differently",
            remedy="use an estimator of whole responses (algorithm.estimator: grpo), or a chat template that leaves "
            "earlier turns as they are (model.chat_template: keep_thinking)",
        )
    return as_single_turn(_sampled(batch)) if batch.turn_index is None else batch.turn_index


def _estimate(
    estimator: Estimator, tensors: Mapping[str, Tensor | None], algorithm: AlgorithmConfig, counted_B: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Ask the estimator for advantages and, if it is token-level, returns. It gets the tensors that its parameters name
    and that are there. An advantage of a response is spread over its trained tokens.

    ConfigError if a user's estimator fails, or returns something that is not advantages.
    """
    given = tensors if counted_B is None or estimator.token_level else _once(estimator, tensors, counted_B)
    numbers = estimator_numbers(estimator, algorithm)
    result = _ask_outside(estimator, given, numbers) if is_outside(estimator.name) else estimator(given, numbers)
    if estimator.token_level:
        advantages_BT, returns_BT = result
        return advantages_BT, returns_BT
    advantages_B = result if counted_B is None else result[counted_B.unique(return_inverse=True)[1]]
    return shaping.spread(advantages_B, present(tensors["mask_BT"], "mask_BT")), None


def _once(estimator: Estimator, tensors: Mapping[str, Tensor | None], counted_B: Tensor) -> dict[str, Tensor | None]:
    """The tensors with only those rows that count for themselves, and the lengths of all that they count for."""
    if "old_logprobs_BT" in estimator.inputs:
        raise ConfigError(
            f"the estimator {estimator.name!r} compares log-probabilities of whole responses, but some conversations "
            "of this step are several rows",
            remedy="use another estimator, or a chat template that leaves earlier turns as they are "
            "(model.chat_template: keep_thinking)",
        )
    rows = counted_B.unique()
    whole = {**tensors, "lengths_B": _summed(present(tensors["lengths_B"], "lengths_B"), counted_B)}
    return {n: t if t is None or n == "weights_C" else t[rows] for n, t in whole.items()}


def _summed(numbers_B: Tensor, counted_B: Tensor) -> Tensor:
    """Each row's number replaced by the sum over the rows that count as one."""
    return torch.zeros_like(numbers_B).index_add(0, counted_B, numbers_B)[counted_B]


def _ask_outside(estimator: Estimator, given: Mapping[str, Tensor | None], numbers: Mapping[str, object]) -> Any:
    """Call a user's estimator, and check what it returns."""
    with calling_outside(f"algorithm.estimator {estimator.name!r}", ConfigError):
        result = estimator(given, numbers)
    mask_BT, token_level = present(given["mask_BT"], "mask_BT"), estimator.token_level
    advantages, returns_BT = checked_advantages(result, mask_BT, name=estimator.name, token_level=token_level)
    return (advantages, returns_BT) if token_level else advantages


def credit_rows(
    batch: Batch,
    rows: Sequence[Row],
    *,
    config: RlConfig,
    estimator: Estimator,
    kl_coef: float,
    domain_credit: DomainCredit | None,
) -> tuple[Batch, Mapping[str, Metric]]:
    """The batch with advantages (whitened, unless that is left to minibatches), and what to log.

    rows: of the batch, in its order. The batch has what the algorithm needs: values, log-probabilities.
    domain_credit: None for a run without domains.
    """
    rewards = build_rewards(rows)
    if not {"parts_BC", "weights_C"}.isdisjoint(estimator.inputs):
        rewards = with_parts(rewards, rows, config.reward_weights)
    if not {"observation_ids_BT", "history_ids_BT"}.isdisjoint(estimator.inputs):
        rewards = with_states(rewards, [rollout for _, rollout in rows])
    if domain_credit is not None:
        rewards = domain_credit.normalized(rewards, batch, rows)
    batch, metrics = assign_advantages(
        batch,
        rewards,
        algorithm=config.algorithm,
        estimator=estimator,
        kl_coef=kl_coef,
        whiten=not config.whitens_minibatches,
    )
    return batch if domain_credit is None else domain_credit.weighted(batch, rows), metrics
