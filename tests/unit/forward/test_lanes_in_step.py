"""Lanes of processes that make equally many passes."""

from __future__ import annotations

from typing import Any

from burnish.forward.lanes import LanesInStep


class Pair:
    """A team of two, seen from one of them; it says what the other one would."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.size = 2

    def exchange(self, own: Any) -> list[Any]:
        return [own, own]


def test_passes_are_filled_up_to_those_of_the_other() -> None:
    """Three parts in two lanes: one process has two of them, and the other makes a pass more than it has parts."""
    parts, costs = ["a", "b", "c"], [4, 3, 2]
    team: Any = Pair(0)
    assert LanesInStep(2, team).fillers(parts, costs) == ["a"]
    team = Pair(1)
    assert LanesInStep(2, team).fillers(parts, costs) == []


def test_nothing_to_train_on_needs_no_pass() -> None:
    """As when all advantages of a minibatch are 0."""
    team: Any = Pair(0)
    lanes = LanesInStep(2, team)
    assert lanes.fillers([], []) == []
    values: list[object] = []
    with lanes.adding([], [], [], values) as parts:
        assert list(parts) == []
    assert values == []
