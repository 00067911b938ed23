"""From scored rollouts to tensors."""

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_samples import group_of, plain_rollout

from burnish.trainers.rl.batching import build_batch, build_rewards, epoch_rows, scored, with_parts
from burnish.types import FinishReason, Rollout

PAD = 0


def rollout(group: int, index: int, tokens: int, reward: float | None = 1.0, **fields: object) -> Rollout:
    own = {
        "prompt_tokens": (1,) * (group + 1),
        "response_tokens": tuple(range(10, 10 + tokens)),
        "rollout_logprobs": tuple(-0.5 * (t + 1) for t in range(tokens)),
    }
    return plain_rollout(tokens, reward, group=group, index=index, **own | fields)


def test_failed_rewards_are_left_out_of_their_group() -> None:
    groups = [group_of(rollout(0, 0, 2), rollout(0, 1, 2, None)), group_of(rollout(1, 0, 1, 0.0))]
    assert [(r.group_id, r.sample_index) for _, r in scored(groups)] == [(0, 0), (1, 0)]


def test_rows_are_the_samplers_own_tokens_right_padded() -> None:
    batch = build_batch([rollout(0, 0, 3), rollout(1, 0, 1)], pad_token_id=PAD, mask_truncated=False)
    assert batch.prompt_tokens.tolist() == [[1, PAD], [1, 1]]
    assert batch.prompt_lengths.tolist() == [1, 2]
    assert batch.response_tokens.tolist() == [[10, 11, 12], [10, PAD, PAD]]
    assert batch.response_lengths.tolist() == [3, 1]
    assert batch.loss_mask.tolist() == [[True, True, True], [True, False, False]]
    assert batch.group_ids.tolist() == [0, 1]
    assert batch.rollout_logprobs.tolist() == [[-0.5, -1.0, -1.5], [-0.5, 0.0, 0.0]]
    assert batch.old_logprobs is None


def test_truncated_responses_have_no_trained_token_when_masked() -> None:
    rows = [rollout(0, 0, 2, finish_reason=FinishReason.LENGTH), rollout(0, 1, 2)]
    masked = build_batch(rows, pad_token_id=PAD, mask_truncated=True)
    assert masked.loss_mask.tolist() == [[False, False], [True, True]]
    assert masked.response_lengths.tolist() == [2, 2]
    assert build_batch(rows, pad_token_id=PAD, mask_truncated=False).loss_mask.all()


def test_equal_prompts_stay_two_groups() -> None:
    twins = [rollout(0, 0, 1), dataclasses.replace(rollout(0, 0, 1), group_id=5)]
    assert build_batch(twins, pad_token_id=PAD, mask_truncated=False).group_ids.tolist() == [0, 5]


def outcome_of(*rollouts: Rollout, greedy: Rollout | None = None, weights: dict[str, float] | None = None):
    group = group_of(*rollouts, greedy=greedy)
    rows = [(group, r) for r in rollouts]
    return with_parts(build_rewards(rows), rows, weights or {})


def test_scores_and_nothing_else() -> None:
    outcome = outcome_of(rollout(0, 0, 1, 0.1), rollout(0, 1, 1, -1.0))
    assert outcome.scores_B.tolist() == pytest.approx([0.1, -1.0], rel=1e-7)
    assert outcome.dense_rewards_BT is None
    assert outcome.greedy_scores_B is None
    assert outcome.parts_BC is None
    assert outcome.weights_C is None


def test_the_greedy_score_stands_beside_every_sample() -> None:
    outcome = outcome_of(rollout(0, 0, 1), rollout(0, 1, 1), greedy=rollout(0, -1, 1, 0.5))
    assert outcome.greedy_scores_B.tolist() == [0.5, 0.5]
    assert outcome_of(rollout(0, 0, 1), greedy=rollout(0, -1, 1, None)).greedy_scores_B is None


def test_a_row_scored_as_a_whole_keeps_its_score_on_its_last_token_beside_dense_ones() -> None:
    outcome = outcome_of(rollout(0, 0, 2, 0.75, token_rewards=(0.5, 0.25)), rollout(0, 1, 3, 2.0))
    assert outcome.dense_rewards_BT.tolist() == [[0.5, 0.25, 0.0], [0.0, 0.0, 2.0]]


def test_parts_follow_the_order_of_the_weights() -> None:
    rows = [
        rollout(0, 0, 1, reward_parts={"a": 1.0, "b": 2.0, "b/detail": 9.0, "overlong": -1.0}),
        rollout(0, 1, 1, reward_parts={"b": 4.0, "a": 3.0}),
    ]
    outcome = outcome_of(*rows, weights={"b": 0.5, "a": 2.0})
    assert outcome.parts_BC.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert outcome.weights_C.tolist() == [0.5, 2.0]


def test_a_missing_part_leaves_no_parts_rather_than_a_zero() -> None:
    rows = [rollout(0, 0, 1, reward_parts={"a": 1.0}), rollout(0, 1, 1, reward_parts={})]
    assert outcome_of(*rows, weights={"a": 1.0}).parts_BC is None


def test_rows_of_a_sample_with_one_score_count_once() -> None:
    branches = ((1.0, 1), (1.0, 0), (0.5, 2))
    rewards = outcome_of(rollout(0, 0, 1, 0.0), *(rollout(0, 1, 1, score, branch=row) for score, row in branches))
    assert rewards.counted_B.tolist() == [0, 1, 1, 3]
    assert outcome_of(rollout(0, 0, 1, 0.0), rollout(0, 1, 1, 0.0)).counted_B is None


def test_rows_of_a_conversation_count_once_whatever_each_scores() -> None:
    """An end of 3 rows, and a sample of one row."""
    first, second = (rollout(0, 0, 1, score, ends_in=0, branch=row) for row, score in ((1, 0.9), (2, 0.8)))
    rewards = outcome_of(first, second, rollout(0, 0, 1, 0.7), rollout(0, 1, 1, 0.0))
    assert rewards.counted_B.tolist() == [0, 0, 0, 3]


def test_all_rows_of_a_conversation_that_was_cut_are_left_out() -> None:
    rows = [
        rollout(0, 0, 2, ends_in=0, branch=1),
        rollout(0, 0, 2, finish_reason=FinishReason.LENGTH),
        rollout(0, 1, 2),
    ]
    masked = build_batch(rows, pad_token_id=PAD, mask_truncated=True)
    assert masked.loss_mask.any(dim=1).tolist() == [False, False, True]


# Which rows are in which minibatch


Shuffled = Literal["prompts", "responses"]
EITHER = st.sampled_from(("prompts", "responses"))


def rows_of(group_ids: list[int], minibatches: int = 1, shuffle: Shuffled = "prompts", **own: int) -> list[list[int]]:
    place = {"seed": 3, "step": 1, "epoch": 0} | own
    parts = epoch_rows(torch.tensor(group_ids), minibatches=minibatches, shuffle=shuffle, **place)
    return [part.tolist() for part in parts]


def groups(number: int, size: int) -> list[int]:
    return [group for group in range(number) for _ in range(size)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6), EITHER, st.integers(1, 5))
def test_an_epoch_takes_every_row_once_in_parts_of_almost_equal_size(group_ids, minibatches, shuffle, step) -> None:
    parts = rows_of(group_ids, minibatches, shuffle, step=step)
    assert len(parts) == min(minibatches, len(group_ids))
    assert sorted(row for part in parts for row in part) == list(range(len(group_ids)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(1, 6), st.integers(0, 3))
def test_shuffled_prompts_tear_a_group_only_where_a_cut_falls(group_ids, minibatches, epoch) -> None:
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
