"""Estimators without a critic: they compare a score with other responses to its prompt, or with a baseline.

Each takes one score per sequence `[B]` and returns one advantage per sequence `[B]`, which applies to every trained
token of that sequence (`shaping.spread`). Pass the rollouts of the entire step, all workers together.

Group estimators: `group_ids_B` are any integers. A group whose scores are all equal gets exactly 0. A group of one
raises ConfigError unless `allow_single` (the others failed and were left out); it then gets 0. In `maxrl`
it is allowed and keeps its score.

Group statistics are float64, because the error of a float32 sum over a large group of large scores can exceed the
differences between them. Advantages are returned as float32 (float64 for float64 scores).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.masking import WHITEN_EPS, as_float, fill_masked
from burnish.errors import ConfigError


@dataclass(frozen=True)
class Groups:
    """The sequences that share a `group_id`, in any order and with any integers as ids. Each method returns one number
    per row: the statistic of the row's group."""

    index_B: Tensor  # rows -> 0 .. num_groups - 1
    num_groups: int

    @classmethod
    def of(cls, group_ids_B: Tensor) -> Groups:
        ids, index_B = torch.unique(group_ids_B, return_inverse=True)
        return cls(index_B, ids.numel())

    def sum(self, values_B: Tensor) -> Tensor:
        totals = torch.zeros(self.num_groups, dtype=values_B.dtype, device=values_B.device)
        return totals.index_add(0, self.index_B, values_B)[self.index_B]

    def size(self, like_B: Tensor) -> Tensor:
        return self.sum(torch.ones_like(like_B))

    def mean(self, values_B: Tensor) -> Tensor:
        return self.sum(values_B) / self.size(values_B)

    def max(self, values_B: Tensor) -> Tensor:
        top = torch.full((self.num_groups,), -torch.inf, dtype=values_B.dtype, device=values_B.device)
        return top.scatter_reduce(0, self.index_B, values_B, "amax")[self.index_B]

    def min(self, values_B: Tensor) -> Tensor:
        return -self.max(-values_B)

    def std(self, values_B: Tensor, *, unbiased: bool) -> Tensor:
        squares_B = self.sum((values_B - self.mean(values_B)).square())
        return (squares_B / (self.size(values_B) - int(unbiased)).clamp(min=1)).sqrt()

    def constant(self, values_B: Tensor) -> Tensor:
        """True if all values of the group are equal, as in a group of one. Exact, unlike std == 0."""
        return self.max(values_B) == self.min(values_B)

    def zero_constant(self, advantages_B: Tensor, values_B: Tensor) -> Tensor:
        """`advantages_B`, but exactly 0 (not rounding noise divided by an epsilon) where a group's values are equal."""
        return torch.where(self.constant(values_B), torch.zeros_like(advantages_B), advantages_B)


def form_groups(name: str, scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool) -> Groups:
    """Form the groups of a step. ConfigError for a group of one unless `allow_single`."""
    if scores_B.shape[:1] != group_ids_B.shape:
        raise ValueError(f"{scores_B.shape[0]} rows of scores, but group_ids of shape {tuple(group_ids_B.shape)}")
    groups = Groups.of(group_ids_B)
    if not allow_single and len(alone := group_ids_B[groups.size(group_ids_B) == 1]):
        raise ConfigError(
            f"estimator {name!r} compares the responses to each prompt, but {len(alone)} group(s) have only one "
            f"response (group_id {int(alone[0])})",
            remedy="set group_size to at least 2, or choose an estimator without groups, such as reinforce_plus_plus",
        )
    return groups


def scores_in_groups(name: str, scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool) -> tuple[Tensor, Groups]:
    """The scores in float64, and the groups of the step, as `form_groups` forms them."""
    return scores_B.double(), form_groups(name, scores_B, group_ids_B, allow_single=allow_single)


def grpo(
    scores_B: Tensor, group_ids_B: Tensor, *, eps: float = 1e-6, unbiased: bool = True, allow_single: bool = False
) -> Tensor:
    """(r - mean_G) / (std_G + eps) `[B]`, Shao 2024 (https://arxiv.org/abs/2402.03300)."""
    scores, groups = scores_in_groups("grpo", scores_B, group_ids_B, allow_single=allow_single)
    return _narrow(_standardise(scores, groups, eps=eps, unbiased=unbiased), scores_B)


def dr_grpo(scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """r - mean_G `[B]`, Liu 2025 (https://arxiv.org/abs/2503.20783): no bias towards too easy or too hard prompts."""
    scores, groups = scores_in_groups("dr_grpo", scores_B, group_ids_B, allow_single=allow_single)
    return _narrow(_centre(scores, groups), scores_B)


def rloo(scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """r - mean of the other members of the group `[B]`, Ahmadian 2024 (https://arxiv.org/abs/2402.14740)."""
    scores, groups = scores_in_groups("rloo", scores_B, group_ids_B, allow_single=allow_single)
    others_B = (groups.sum(scores) - scores) / (groups.size(scores) - 1).clamp(min=1)  # a group of one gets 0 below
    return _narrow(groups.zero_constant(scores - others_B, scores), scores_B)


def opo(scores_B: Tensor, group_ids_B: Tensor, lengths_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """r - sum_G(length r) / sum_G(length) `[B]`, Hao 2025 (https://arxiv.org/abs/2505.23585).

    `lengths_B` counts trained tokens. The length-weighted mean is the baseline with the least variance if the squared
    norm of a sequence's gradient is proportional to its length.
    """
    scores, lengths = scores_B.double(), lengths_B.double()
    groups = form_groups("opo", scores, group_ids_B, allow_single=allow_single)
    total_B = groups.sum(lengths)
    baseline_B = groups.sum(lengths * scores) / torch.where(total_B > 0, total_B, torch.ones_like(total_B))
    return _narrow(groups.zero_constant(scores - baseline_B, scores), scores_B)


def gpg(scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """(r - mean_G) * B / (sequences in non-constant groups) `[B]`, Chu 2025 (https://arxiv.org/abs/2504.02546).

    The factor makes up for groups without a signal, which would otherwise shrink the step.
    """
    scores, groups = scores_in_groups("gpg", scores_B, group_ids_B, allow_single=allow_single)
    informative = (~groups.constant(scores)).sum().clamp(min=1)
    return _narrow(_centre(scores, groups) * (scores.numel() / informative), scores_B)


def passk(
    scores_B: Tensor, group_ids_B: Tensor, *, normalise: bool = False, eps: float = 1e-6, allow_single: bool = False
) -> Tensor:
    """r_max - r_second for the best of its group, 0 for all others `[B]`, Tang 2025 (https://arxiv.org/abs/2503.19595).

    The leave-one-out gradient of the expected maximum over the group, divided by (std_G + eps) with `normalise`. If two
    share the best score, neither adds to the maximum, and the group gets 0.
    """
    scores, groups = scores_in_groups("passk", scores_B, group_ids_B, allow_single=allow_single)
    best_B = scores == groups.max(scores)
    second_B = groups.max(torch.where(best_B, torch.full_like(scores, -torch.inf), scores))
    alone_B = best_B & (groups.sum(best_B.to(scores.dtype)) == 1) & ~groups.constant(scores)
    gap_B = scores - torch.where(torch.isinf(second_B), scores, second_B)  # no second score if all are equal
    if normalise:
        gap_B = gap_B / (groups.std(scores, unbiased=True) + eps)
    return _narrow(torch.where(alone_B, gap_B, torch.zeros_like(gap_B)), scores_B)


def best_of_n(
    scores_B: Tensor, group_ids_B: Tensor, *, above: float | None = None, allow_single: bool = False
) -> Tensor:
    """1 for responses that are kept, 0 for all others `[B]`: rejection sampling (RAFT, Dong 2023,
    https://arxiv.org/abs/2304.06767).

    Kept is the best of each group, of equally good ones the first, and none of a group whose scores are all equal. With
    `above` instead every response whose score is higher. With the loss `reinforce` this is -log p of the kept tokens.
    """
    groups = form_groups("best_of_n", scores_B, group_ids_B, allow_single=allow_single)
    if above is not None:
        return _narrow((scores_B > above).double(), scores_B)
    return _narrow(groups.zero_constant(_first_best(scores_B.double(), groups), scores_B), scores_B)


def online_dpo(
    scores_B: Tensor,
    group_ids_B: Tensor,
    old_logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    beta: float = 0.1,
    allow_single: bool = False,
) -> Tensor:
    """beta s(-h) for the best of its group, -beta s(-h) for the worst, 0 for all others `[B]`, Guo 2024
    (https://arxiv.org/abs/2402.04792).

    s is the logistic function, h = beta ((log p - log p_ref)(best) - (log p - log p_ref)(worst)) with sums over the
    trained tokens. Of equal scores the first counts, and a group whose scores are all equal makes no pair. With the
    loss `reinforce` and sums over tokens, this is the gradient of DPO's -log s(h) where p is still the policy, which
    holds in the first update of a step.
    """
    scores_B, groups = scores_in_groups("online_dpo", scores_B, group_ids_B, allow_single=allow_single)
    sign_B = _first_best(scores_B, groups) - _first_best(-scores_B, groups)
    ratio_B = (fill_masked(old_logprobs_BT, mask_BT) - fill_masked(ref_logprobs_BT, mask_BT)).double().sum(dim=1)
    weight_B = beta * torch.sigmoid(-beta * groups.sum(sign_B * ratio_B))
    return groups.zero_constant(sign_B * weight_B, scores_B).to(as_float(old_logprobs_BT).dtype)


def _first_best(scores_B: Tensor, groups: Groups) -> Tensor:
    """1 for the first of the highest scores of each group, 0 for all others, float64."""
    best_B, row_B = scores_B == groups.max(scores_B), torch.arange(len(scores_B), device=scores_B.device).double()
    return (best_B & (row_B == groups.min(torch.where(best_B, row_B, torch.inf)))).double()


def grpo_batch_std(scores_B: Tensor, group_ids_B: Tensor, *, eps: float = 1e-6, allow_single: bool = False) -> Tensor:
    """(r - mean_G) / (std over the step + eps) `[B]`, Liu 2025 (https://arxiv.org/abs/2508.08221), std unbiased."""
    scores, groups = scores_in_groups("grpo_batch_std", scores_B, group_ids_B, allow_single=allow_single)
    squares = (scores - scores.mean()).square().sum()
    std = (squares / max(scores.numel() - 1, 1)).sqrt()
    return _narrow(groups.zero_constant(_centre(scores, groups) / (std + eps), scores), scores_B)


def maxrl(scores_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """(r - mean_G) / mean_G `[B]`, 0 where the mean is 0, r in a group of one (https://arxiv.org/abs/2602.02710).

    For rewards of 0 and 1 this is the gradient of the log-likelihood of a correct answer, to the order that the size of
    the group allows, where the others have the gradient of its probability: prompts that are seldom solved count for
    more. ConfigError for a negative reward, with which a mean says nothing about the share that is solved.
    """
    scores, groups = scores_in_groups("maxrl", scores_B, group_ids_B, allow_single=True)
    if bool((scores < 0).any()):
        raise ConfigError(
            f"estimator 'maxrl' divides by the mean reward of a group, but a reward is {float(scores.min()):g}",
            remedy="use rewards of 0 and more, without penalties below 0, or another estimator (dr_grpo)",
        )
    mean_B = groups.mean(scores)
    relative_B = _centre(scores, groups) / torch.where(mean_B > 0, mean_B, torch.ones_like(mean_B))
    return _narrow(torch.where(groups.size(scores) == 1, scores, relative_B), scores_B)


def reinforce_plus_plus_baseline(scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool = False) -> Tensor:
    """r - mean_G, then whitened over the step `[B]`, Hu 2025 (https://arxiv.org/abs/2501.03262).

    Whitened over sequences, not tokens. Centred scores already have mean 0 over the step, so only the scale changes: a
    constant group stays at exactly 0, and long responses do not set the scale for short ones.
    """
    scores, groups = scores_in_groups("reinforce_plus_plus_baseline", scores_B, group_ids_B, allow_single=allow_single)
    return _narrow(_unit_scale(_centre(scores, groups)), scores_B)


def gdpo(
    parts_BC: Tensor,
    group_ids_B: Tensor,
    weights_C: Tensor,
    *,
    eps: float = 1e-6,
    unbiased: bool = True,
    allow_single: bool = False,
) -> Tensor:
    """Each reward component normalised within its group, then their weighted sum, whitened over the step `[B]`.

    Liu 2026 (https://arxiv.org/abs/2601.05242). `parts_BC` are the unweighted components, `weights_C` their weights.
    Normalising before adding distinguishes combinations of components that have the same sum. Whitened over sequences,
    as in `reinforce_plus_plus_baseline`. A component that is constant within a group adds exactly 0 there.
    """
    parts, weights = parts_BC.double(), weights_C.double()
    if parts.ndim != 2 or weights.shape != parts.shape[1:]:
        raise ValueError(f"parts of shape {tuple(parts.shape)}, but weights of shape {tuple(weights.shape)}")
    groups = form_groups("gdpo", parts, group_ids_B, allow_single=allow_single)
    columns = [_standardise(column_B, groups, eps=eps, unbiased=unbiased) for column_B in parts.unbind(dim=1)]
    return _narrow(_unit_scale((torch.stack(columns, dim=1) * weights).sum(dim=1)), parts_BC)


def remax(scores_B: Tensor, greedy_scores_B: Tensor) -> Tensor:
    """r - score of the greedy response to the same prompt `[B]`, Li 2023 (https://arxiv.org/abs/2310.10505).

    For rewards per token, such as a KL, see `returns.remax_per_token`, which the estimator `remax` uses.
    """
    if scores_B.shape != greedy_scores_B.shape:
        raise ValueError(f"{tuple(scores_B.shape)} scores, but {tuple(greedy_scores_B.shape)} greedy ones")
    return as_float(scores_B) - as_float(greedy_scores_B)


def raw(scores_B: Tensor, *, baseline: float = 0.0) -> Tensor:
    """r - baseline `[B]`: plain REINFORCE, Williams 1992 (https://doi.org/10.1007/BF00992696)."""
    return as_float(scores_B) - baseline


def _narrow(advantages_B: Tensor, like_B: Tensor) -> Tensor:
    return advantages_B.to(as_float(like_B).dtype)


def _centre(scores_B: Tensor, groups: Groups) -> Tensor:
    return groups.zero_constant(scores_B - groups.mean(scores_B), scores_B)


def _standardise(scores_B: Tensor, groups: Groups, *, eps: float, unbiased: bool) -> Tensor:
    return groups.zero_constant(_centre(scores_B, groups) / (groups.std(scores_B, unbiased=unbiased) + eps), scores_B)


def _unit_scale(centred_B: Tensor) -> Tensor:
    """Whiten values whose mean is 0 by construction, without a shift, so that exact zeros stay."""
    return centred_B * torch.rsqrt(centred_B.square().mean() + WHITEN_EPS)
