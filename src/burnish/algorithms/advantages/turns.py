"""Estimators for conversations: each turn of the policy is compared with turns of the other samples of its group.

Time passes from turn to turn: gamma discounts once between two turns, however long they are. They read
`turn_index_BT` (see `burnish.algorithms.masking`) and return `(advantages_BT, returns_BT)`, 0 in masked slots; both are
the same for all tokens of a turn. A row that is left out of the loss (its mask is all False) counts in the statistics
of its group, as it does for the estimators of whole responses.

Statistics are float64. If all compared turns have the same return, or a turn has no other to be compared with, its
relative advantage is exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.advantages.outcome import Groups, form_groups
from burnish.algorithms.masking import as_float, fill_masked

ROUNDING = 2.5e-7
"""Returns that differ by at most this share of their rewards' absolute sum are equal. Rewards are float32, where
.1 + .2 is not quite .3, and a standard deviation of almost 0 would magnify the difference."""


def turn_grpo(
    token_rewards_BT: Tensor,
    group_ids_B: Tensor,
    turn_index_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    eps: float = 1e-6,
    unbiased: bool = True,
    normalise: bool = True,
    allow_single: bool = False,
) -> tuple[Tensor, Tensor]:
    """(R_t - mean) / (std + eps) over the turns number t of the group, R_t = r_t + gamma R_{t+1}.

    r_t is the sum of the token rewards of turn t. Only rows that have a turn t are compared. A turn that only one row
    has gets 0, as a group of one does. Without `normalise`, R_t - mean. For rows of one turn each, this is `grpo`
    (`dr_grpo` without `normalise`).

    Turn-level advantages: Zeng 2025 (https://arxiv.org/abs/2505.11821), who add normalised turn and outcome rewards;
    discounted returns of turns: Ding 2025 (https://arxiv.org/abs/2511.14846).
    """
    groups = form_groups("turn_grpo", token_rewards_BT, group_ids_B, allow_single=allow_single)
    turns = _Turns.of(token_rewards_BT, turn_index_BT, gamma)
    number_BK = torch.arange(turns.most, device=turn_index_BT.device).expand_as(turns.present_BK)
    advantages_BK = turns.relative(groups, number_BK, unbiased=unbiased, eps=eps if normalise else None)
    return turns.spread(advantages_BK, mask_BT)


def gigpo(
    token_rewards_BT: Tensor,
    group_ids_B: Tensor,
    turn_index_BT: Tensor,
    observation_ids_BT: Tensor,
    history_ids_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float = 1.0,
    omega: float = 1.0,
    whole_history: bool = False,
    eps: float = 1e-6,
    unbiased: bool = True,
    normalise: bool = True,
    allow_single: bool = False,
) -> tuple[Tensor, Tensor]:
    """A_episode + omega A_step, Feng 2025 (https://arxiv.org/abs/2505.10978).

    A_episode = (R - mean_G) / (std_G + eps) over the rows of the group, R the sum of all token rewards. A_step is the
    same for the discounted return R_t = r_t + gamma R_{t+1} of a turn, over all turns of the group in the same state,
    of any row and at any time. Without `normalise` neither is divided. A turn whose state no other in the group
    shares has A_step 0. With omega 0 this is `grpo`.

    Args:
        observation_ids_BT: at each token a number for the text that its turn answers: the last observation before it,
            or the prompt. Turns of a group with equal numbers are in the same state.
        history_ids_BT: the same for everything before the turn.
        whole_history: take states from `history_ids_BT`, for environments whose observations do not show all of it.
    """
    groups = form_groups("gigpo", token_rewards_BT, group_ids_B, allow_single=allow_single)
    turns, divisor = _Turns.of(token_rewards_BT, turn_index_BT, gamma), eps if normalise else None
    episode_B = turns.relative_of_rows(groups, unbiased=unbiased, eps=divisor)
    state_BK = turns.numbers(history_ids_BT if whole_history else observation_ids_BT)
    step_BK = turns.relative(groups, state_BK, unbiased=unbiased, eps=divisor)
    return turns.spread(episode_B[:, None] + omega * step_BK, mask_BT)


@dataclass(frozen=True)
class _Turns:
    """The turns of all rows, in K places for each.

    present_BK: True if the row has this turn. rewards_BK, returns_BK: sum of its token rewards, and return from this
    turn on; 0 for turns that a row does not have. sizes_BK: sum of the absolute rewards from this turn on.
    """

    turn_index_BT: Tensor
    present_BK: Tensor
    rewards_BK: Tensor
    returns_BK: Tensor
    sizes_BK: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, token_rewards_BT: Tensor, turn_index_BT: Tensor, gamma: float) -> _Turns:
        sampled_BT = turn_index_BT >= 0
        most = max(int(turn_index_BT.max()) + 1, 1)
        rewards_BK, sizes_BK, lengths_BK = (
            _sums(values_BT, turn_index_BT, sampled_BT, most)
            for values_BT in (token_rewards_BT, token_rewards_BT.abs(), torch.ones_like(token_rewards_BT))
        )
        return cls(
            turn_index_BT,
            lengths_BK > 0,
            rewards_BK,
            _to_go(rewards_BK, gamma),
            _to_go(sizes_BK, 1.0),
            as_float(token_rewards_BT).dtype,
        )

    @property
    def most(self) -> int:
        return self.present_BK.shape[1]

    def numbers(self, ids_BT: Tensor) -> Tensor:
        """Reduce numbers that are equal within a turn to `[B, K]`."""
        ids = torch.where(self.turn_index_BT >= 0, ids_BT, 0)
        return torch.zeros_like(self.present_BK, dtype=ids.dtype).scatter_reduce(
            1, self.turn_index_BT.clamp(min=0), ids, "amax"
        )

    def relative(self, groups: Groups, cohort_BK: Tensor, *, unbiased: bool, eps: float | None) -> Tensor:
        """The return of each turn relative to the turns of its group with the same number, not below 0, in
        `cohort_BK`. 0 for turns that a row does not have."""
        among_BK = groups.index_B[:, None] * (cohort_BK.max() + 1) + cohort_BK
        return _relative(self.present_BK, self.returns_BK, self.sizes_BK, among_BK, unbiased=unbiased, eps=eps)

    def relative_of_rows(self, groups: Groups, *, unbiased: bool, eps: float | None) -> Tensor:
        """The undiscounted sum of each row `[B]` relative to its group; 0 for a row without turns."""
        here, sums_B = self.present_BK.any(dim=1), self.rewards_BK.sum(dim=1)
        return _relative(here, sums_B, self.sizes_BK[:, 0], groups.index_B, unbiased=unbiased, eps=eps)

    def spread(self, advantages_BK: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns at the unmasked tokens of each turn."""
        turns_BT = self.turn_index_BT.clamp(min=0)
        advantages_BT, returns_BT = (
            fill_masked(values_BK.gather(1, turns_BT), mask_BT).to(self.dtype)
            for values_BK in (advantages_BK, self.returns_BK)
        )
        return advantages_BT, returns_BT


def _sums(values_BT: Tensor, turn_index_BT: Tensor, sampled_BT: Tensor, most: int) -> Tensor:
    """Sum over each turn `[B, most]`, float64."""
    filled_BT = fill_masked(values_BT, sampled_BT).double()
    sums_BK = filled_BT.new_zeros(filled_BT.shape[0], most)
    return sums_BK.scatter_add(1, turn_index_BT.clamp(min=0), filled_BT)


def _to_go(rewards_BK: Tensor, gamma: float) -> Tensor:
    columns: list[Tensor] = []
    for reward_B in reversed(rewards_BK.unbind(dim=1)):
        columns.append(reward_B + gamma * columns[-1] if columns else reward_B)
    return torch.stack(columns[::-1], dim=1)


def _relative(
    here: Tensor, values: Tensor, sizes: Tensor, group_ids: Tensor, *, unbiased: bool, eps: float | None
) -> Tensor:
    """Distance of the values that are `here` from the mean of their group, divided by its deviation unless `eps` is
    None; 0 elsewhere. sizes: scale of the values' rounding errors."""
    values_N, groups = values[here], Groups.of(group_ids[here])
    constant_N = groups.max(values_N) - groups.min(values_N) <= ROUNDING * groups.max(sizes[here])
    relative_N = torch.where(constant_N, torch.zeros_like(values_N), values_N - groups.mean(values_N))
    if eps is not None:
        variance_N = groups.sum(relative_N.square()) / (groups.size(values_N) - int(unbiased)).clamp(min=1)
        # Replaced before the square root, whose gradient at 0 is infinite.
        relative_N = relative_N / (torch.where(constant_N, torch.ones_like(variance_N), variance_N).sqrt() + eps)
    return torch.zeros_like(values).masked_scatter(here, relative_N)
