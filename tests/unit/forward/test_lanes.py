"""Lanes: what is dealt to whom, and the tree in which sums are added."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from burnish.algorithms.balancing import deal
from burnish.forward.lanes import Lanes, LanesInStep, add_gradients, halves, lanes_of, own_nodes, tree_sum


def test_the_dearest_go_first_each_to_the_emptiest_lane() -> None:
    assert deal([5, 9, 4, 4, 1], 2) == [[1, 3], [0, 2, 4]]
    assert deal([7], 3) == [[0], [], []]
    assert deal([], 2) == [[], []]


def test_no_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one lane, got 0"):
        deal([1], 0)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_every_part_is_dealt_once(costs: list[int], lanes: int) -> None:
    dealt = deal(costs, lanes)
    assert sorted(index for lane in dealt for index in lane) == list(range(len(costs)))
    loads = [sum(costs[index] for index in lane) for lane in dealt]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_a_tree_grows_without_changing_the_sums_that_it_has() -> None:
    assert halves((0, 2)) == ((0, 1), (1, 2))
    assert halves((0, 3)) == ((0, 2), (2, 3))
    assert halves((0, 6)) == ((0, 4), (4, 6))
    assert halves((4, 8)) == ((4, 6), (6, 8))


def test_the_nodes_of_a_process() -> None:
    assert own_nodes((0, 4), (0, 2)) == [(0, 2)]
    assert own_nodes((0, 6), (2, 4)) == [(2, 4)]
    assert own_nodes((0, 6), (3, 6)) == [(3, 4), (4, 6)]
    assert own_nodes((0, 6), (0, 3)) == [(0, 2), (2, 3)]


def add_text(left: str, right: str) -> str:
    return f"({left}+{right})"


def lane_text(span: tuple[int, int]) -> str | None:
    return str(span[0]) if span[1] - span[0] == 1 else None


def test_the_order_of_a_sum() -> None:
    assert tree_sum((0, 6), lane_text, add_text) == "(((0+1)+(2+3))+(4+5))"


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_order_does_not_depend_on_the_number_of_processes(size: int, each: int) -> None:
    lanes = size * each
    parts = {
        node: tree_sum(node, lane_text, add_text)
        for rank in range(size)
        for node in own_nodes((0, lanes), lanes_of(rank, size, lanes))
    }
    assert tree_sum((0, lanes), parts.get, add_text) == tree_sum((0, lanes), lane_text, add_text)


def test_lanes_that_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="4 lanes cannot be shared equally by 3 processes"):
        lanes_of(0, 3, 4)


def test_absent_gradients_leave_the_others_alone() -> None:
    total = add_gradients([None, torch.tensor([1.0]), None], [torch.tensor([2.0]), torch.tensor([3.0]), None])
    assert total == [torch.tensor([2.0]), torch.tensor([4.0]), None]


def test_a_budget_leaves_no_lane_idle() -> None:
    assert Lanes(4).budget(1000, 2048) == 250
    assert Lanes(4).budget(100_000, 2048) == 2048
    assert Lanes(1).budget(1000, 2048) == 2048


def test_gradients_of_lanes_are_added_to_those_that_are_there() -> None:
    weight, idle = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    weight.grad = torch.tensor([0.5])

    values: list[float] = []
    with Lanes(2).adding([1.0, 2.0, 4.0], [1, 1, 5], [weight, idle], values) as parts:
        for factor in parts:
            (weight * factor).sum().backward()
            values.append(factor)
    assert values == [4.0, 1.0, 2.0]  # lane by lane
    assert weight.grad == torch.tensor([7.5])
    assert idle.grad is None


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
