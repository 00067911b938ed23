"""Sums within turns: the spans of a conversation that the policy sampled without a tool or environment in between.

`turn_index_BT` (int64) holds the number of the turn that a token belongs to, counted from 0 in each row, and -1 for
tokens that the policy did not sample: messages of tools and environments, and padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.masking import fill_masked


def as_single_turn(mask_BT: Tensor) -> Tensor:
    """`turn_index_BT` of rows that are one turn each."""
    return torch.where(mask_BT.bool(), 0, -1)


def sum_within_turns(values_BT: Tensor, turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """At each unmasked token the sum of the unmasked values of its turn `[B, T]`, float64, without a gradient.

    A difference of two running sums: unlike an addition by index, it does not depend on the order of a GPU's threads.
    """
    running_BT = fill_masked(values_BT.detach(), mask_BT).double().cumsum(dim=1)
    before_BT = torch.nn.functional.pad(running_BT, (1, 0))
    first_BT, last_BT = _ends(turn_index_BT)
    return fill_masked(running_BT.gather(1, last_BT) - before_BT.gather(1, first_BT), mask_BT)


def lengths_within_turns(turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """At each unmasked token the number of unmasked tokens of its turn, and 1 elsewhere `[B, T]`, float64."""
    return sum_within_turns(mask_BT.double(), turn_index_BT, mask_BT).clamp(min=1)


def count_turns(turn_index_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Count the turns with at least one unmasked token in all rows together, 0-d."""
    # The turns of a row are in order, so each begins where the number rises above all before it.
    trained_BT = torch.nn.functional.pad(torch.where(mask_BT.bool(), turn_index_BT, -1), (1, 0), value=-1)
    highest_BT = trained_BT.cummax(dim=1).values
    return (highest_BT[:, 1:] > highest_BT[:, :-1]).sum()


def _ends(turn_index_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Columns of the first and the last token of the turn of each token."""
    width = turn_index_BT.shape[1]
    changes_BT = turn_index_BT[:, 1:] != turn_index_BT[:, :-1]
    columns_BT = torch.arange(width, device=turn_index_BT.device).expand_as(turn_index_BT)
    starts_BT = torch.nn.functional.pad(changes_BT, (1, 0), value=True)
    stops_BT = torch.nn.functional.pad(changes_BT, (0, 1), value=True)
    first_BT = torch.where(starts_BT, columns_BT, 0).cummax(dim=1).values
    last_BT = torch.where(stops_BT, columns_BT, width).flip(1).cummin(dim=1).values.flip(1)
    return first_BT, last_BT
