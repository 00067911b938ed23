"""Which lane gets which part of a step. Without PyTorch, because simulations ask it, too."""

from __future__ import annotations

from collections.abc import Sequence


def deal(costs: Sequence[int], lanes: int) -> list[list[int]]:
    """The micro-batches of each lane, in ascending order: dearest first, each to the lane that has the least so far.

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
