from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.models.microbatches import microbatches_by_tokens, position_ids


def test_position_ids_skip_padding_golden():
    mask = torch.tensor([[1, 0, 0, 1, 1, 1]])
    assert position_ids(mask).tolist() == [[0, 1, 1, 1, 2, 3]]


def test_position_ids_of_left_and_right_padding():
    mask = torch.tensor([[False, False, True, True], [True, True, False, False]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_rows_are_sorted_and_fit_the_budget():
    assert microbatches_by_tokens([3, 10, 4, 4, 5], 12) == [[1], [4, 2], [3, 0]]


def test_a_row_above_the_budget_stands_alone():
    assert microbatches_by_tokens([50, 2, 2], 10) == [[0], [1, 2]]


def test_no_rows_no_microbatches():
    assert microbatches_by_tokens([], 10) == []


def test_budget_must_be_positive():
    with pytest.raises(ValueError, match="tokens_per_microbatch"):
        microbatches_by_tokens([1], 0)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100))
def test_every_row_once_and_never_above_the_budget(lengths, budget):
    parts = microbatches_by_tokens(lengths, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget
