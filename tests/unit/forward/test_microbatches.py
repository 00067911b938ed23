import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.forward.microbatches import microbatches_by_groups, microbatches_by_tokens, position_ids


def test_position_ids_skip_padding():
    assert position_ids(torch.tensor([[1, 0, 0, 1, 1, 1]])).tolist() == [[0, 1, 1, 1, 2, 3]]
    mask = torch.tensor([[False, False, True, True], [True, True, False, False]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_rows_are_sorted_and_fit_the_budget():
    assert microbatches_by_tokens([3, 10, 4, 4, 5], 12) == [[1], [4, 2], [3, 0]]


def test_a_row_above_the_budget_stands_alone():
    assert microbatches_by_tokens([50, 2, 2], 10) == [[0], [1, 2]]


def test_no_rows_no_microbatches():
    assert microbatches_by_tokens([], 10) == []


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 100))
def test_every_row_once_and_never_above_the_budget(lengths, budget):
    parts = microbatches_by_tokens(lengths, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget


def test_rows_of_one_prompt_stay_together() -> None:
    """Budget 20; group (0, 2, 4) costs 5 + 4 + 3 + 2 = 14, group (1, 3) 8 + 6 + 6 = 20."""
    parts = microbatches_by_groups([5, 8, 5, 8, 5], [4, 6, 3, 6, 2], [[0, 2, 4], [1, 3]], 20)
    assert parts == [[1, 3], [0, 2, 4]]


def test_groups_share_half_a_large_budget_and_one_group_takes_all_of_it() -> None:
    """Budget 4,000: two groups of 900 fit into 2,000, a third begins anew; one of 3,900 is not torn."""
    lengths = [800, 800, 800, 3800]
    assert microbatches_by_groups([100] * 4, lengths, [[0], [1], [2], [3]], 4000) == [[0, 1], [2], [3]]
    assert microbatches_by_groups([10] * 2, [490] * 2, [[0], [1]], 1000) == [[0, 1]]  # 1,000 are not many
    small = microbatches_by_groups([100] * 4, lengths, [[0], [1], [2], [3]], 4000, shared_tokens=3000)
    assert small == [[0, 1, 2], [3]]  # a model that takes 3,000 lightly


def test_groups_share_a_micro_batch_up_to_so_many_tokens_of_responses() -> None:
    """Responses of 40, 30 and 90 tokens: 70 are within 80, 120 are not; 90 alone are let be, and 10 begin anew."""
    lengths = [40, 30, 90, 10]
    found = microbatches_by_groups([8, 7, 6, 5], lengths, [[0], [1], [2], [3]], 4000, shared_responses=80)
    assert found == [[0, 1], [2], [3]]
    group = microbatches_by_groups([8, 8, 7], [50, 50, 10], [[0, 1], [2]], 4000, shared_responses=80)
    assert group == [[0, 1], [2]]  # prompts do not count, and a group is not torn for it


def test_a_group_above_the_budget_is_split_and_pays_its_prompt_again() -> None:
    assert microbatches_by_groups([5] * 4, [4, 6, 3, 6], [[0, 1, 2, 3]], 15) == [[1], [3, 0], [2]]
    assert microbatches_by_groups([5], [40], [[0]], 15) == [[0]]


@pytest.mark.slow
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=20), budget=st.integers(1, 80)
)
def test_every_row_is_in_one_group_micro_batch_within_the_budget(rows: list[tuple[int, int]], budget: int) -> None:
    prompts, lengths = [3 + 4 * number for number, _ in rows], [length for _, length in rows]
    groups = [[i for i, row in enumerate(rows) if row[0] == number] for number in range(4)]
    parts = microbatches_by_groups(prompts, lengths, [group for group in groups if group], budget)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        cost = sum({prompts[row] for row in part}) + sum(lengths[row] for row in part)
        assert cost <= budget or len(part) == 1
