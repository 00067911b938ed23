"""What the controls of this example use: a calculator that is out of order, and advantages that say nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algorithms.advantages import grpo


def calculator(expression: str) -> str:
    """Calculate the exact value of an arithmetic expression.

    Args:
        expression: Numbers and operators.
    """
    return "out of order"


def shuffled(scores_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """GRPO's advantages, dealt at random within each group."""
    dealt = scores_B.clone()
    for group in group_ids_B.unique().tolist():
        rows = (group_ids_B == group).nonzero()[:, 0]
        dealt[rows] = scores_B[rows[torch.randperm(len(rows))]]
    return grpo(dealt, group_ids_B)
