"""Which rows are in which minibatch."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.trainers.rl.batching import epoch_rows

Shuffled = Literal["prompts", "responses"]
EITHER = st.sampled_from(("prompts", "responses"))


def rows_of(
    group_ids: list[int],
    minibatches: int = 1,
    shuffle: Shuffled = "prompts",
    seed: int = 3,
    step: int = 1,
    epoch: int = 0,
) -> list[list[int]]:
    parts = epoch_rows(
        torch.tensor(group_ids), minibatches=minibatches, shuffle=shuffle, seed=seed, step=step, epoch=epoch
    )
    return [part.tolist() for part in parts]


def groups(number: int, size: int) -> list[int]:
    return [group for group in range(number) for _ in range(size)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6), EITHER, st.integers(1, 5))
def test_an_epoch_takes_every_row_once_in_parts_of_almost_equal_size(
    group_ids: list[int], minibatches: int, shuffle: Shuffled, step: int
) -> None:
    parts = rows_of(group_ids, minibatches, shuffle, step=step)
    assert len(parts) == min(minibatches, len(group_ids))
    assert sorted(row for part in parts for row in part) == list(range(len(group_ids)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6), st.integers(0, 3))
def test_shuffled_prompts_tear_a_group_only_where_a_cut_falls(
    group_ids: list[int], minibatches: int, epoch: int
) -> None:
    """Read one after the other, the rows of each group are side by side."""
    order = [group_ids[row] for part in rows_of(group_ids, minibatches, epoch=epoch) for row in part]
    changes = sum(a != b for a, b in pairwise(order))
    assert changes == len(set(group_ids)) - 1


def test_whole_groups_where_the_sizes_allow_it() -> None:
    """8 groups of 8 in 4 minibatches: two groups in each, other pairs in another epoch."""
    ids = groups(8, 8)
    epochs = [
        [frozenset(ids[row] for row in part) for part in rows_of(ids, minibatches=4, epoch=epoch)] for epoch in (0, 1)
    ]
    assert all(len(pair) == 2 for pairs in epochs for pair in pairs)
    assert set(epochs[0]) != set(epochs[1])


def test_groups_of_one_row_make_both_orders_the_same() -> None:
    ids = groups(16, 1)
    assert rows_of(ids, minibatches=4) == rows_of(ids, minibatches=4, shuffle="responses")


def test_shuffled_responses_mix_the_groups() -> None:
    ids = groups(8, 8)
    parts = rows_of(ids, minibatches=4, shuffle="responses")
    assert all(len({ids[row] for row in part}) > 2 for part in parts)


def test_a_torn_group_is_torn_elsewhere_in_another_epoch() -> None:
    """One group of 8 in two halves."""
    halves = {frozenset(rows_of(groups(1, 8), minibatches=2, epoch=epoch)[0]) for epoch in range(4)}
    assert len(halves) > 1


def test_every_group_is_as_likely_to_come_first() -> None:
    """Of a group of 1, one of 2 and one of 9, each leads a third of 600 orders: 200, give or take 4 x 11.5."""
    ids = [7, 4, 4, *[5] * 9]
    leading = Counter(ids[rows_of(ids, step=step)[0][0]] for step in range(600))
    assert set(leading) == {4, 5, 7}
    assert all(abs(count - 200) < 46 for count in leading.values())


@pytest.mark.parametrize("shuffle", ["prompts", "responses"])
def test_the_order_is_a_pure_function_of_seed_step_and_epoch(shuffle: Shuffled) -> None:
    ids = groups(16, 1)
    first = rows_of(ids, shuffle=shuffle)
    assert rows_of(ids, shuffle=shuffle) == first
    assert rows_of(ids, shuffle=shuffle, epoch=1) != first
    assert rows_of(ids, shuffle=shuffle, step=2) != first
    assert rows_of(ids, shuffle=shuffle, seed=4) != first
