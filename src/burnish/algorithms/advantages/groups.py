"""Statistics within groups: the sequences that share a `group_id`, in any order and with any integers as ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.errors import ConfigError


@dataclass(frozen=True)
class Groups:
    """Each method returns one number per row: the statistic of the row's group."""

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
        """True where all values of the group are equal, as in a group of one. Exact, unlike std == 0."""
        return self.max(values_B) == self.min(values_B)

    def zero_constant(self, advantages_B: Tensor, values_B: Tensor) -> Tensor:
        """`advantages_B`, but exactly 0 (not rounding noise divided by an epsilon) where a group's values are equal."""
        return torch.where(self.constant(values_B), torch.zeros_like(advantages_B), advantages_B)


def form_groups(name: str, scores_B: Tensor, group_ids_B: Tensor, *, allow_single: bool) -> Groups:
    """The groups of a step. ConfigError for a group of one unless `allow_single`."""
    if scores_B.shape[:1] != group_ids_B.shape:
        raise ValueError(f"{scores_B.shape[0]} rows of scores, but group_ids of shape {tuple(group_ids_B.shape)}")
    groups = Groups.of(group_ids_B)
    if not allow_single:
        _refuse_single(name, groups, group_ids_B)
    return groups


def _refuse_single(name: str, groups: Groups, group_ids_B: Tensor) -> None:
    single_B = torch.bincount(groups.index_B, minlength=groups.num_groups)[groups.index_B] == 1
    if bool(single_B.any()):
        ids = group_ids_B[single_B].tolist()
        raise ConfigError(
            f"estimator {name!r} compares the responses to each prompt, but {len(ids)} group(s) have only one response"
            f" (group_id {ids[0]})",
            remedy="set group_size to at least 2, or choose an estimator without groups, such as reinforce_plus_plus",
        )
