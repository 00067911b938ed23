"""Distribution of the parts of a step to lanes. Without PyTorch, because simulations use it, too."""

from __future__ import annotations

from collections.abc import Sequence


def deal(costs: Sequence[int], lanes: int) -> list[list[int]]:
    """Deal micro-batches to lanes: costliest first, each to the lane with the least so far. Ascending within a lane.

    A function of the costs alone; equal ones go to the lower lane. Raises ValueError for fewer than one lane.
    """
    if lanes < 1:
        raise ValueError(f"a step needs at least one lane, got {lanes}")
    loads, dealt = [0] * lanes, [list[int]() for _ in range(lanes)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        lane = min(range(lanes), key=lambda lane: (loads[lane], lane))
        loads[lane] += costs[index]
        dealt[lane].append(index)
    return [sorted(indices) for indices in dealt]
