"""From scored rollouts to tensors."""

from __future__ import annotations

import dataclasses

import pytest
from plain_samples import group_of, plain_rollout

from burnish.trainers.rl.batching import build_batch, build_rewards, scored, with_parts
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
    rewards = outcome_of(
        rollout(0, 0, 1, 0.0),
        rollout(0, 1, 1, 1.0, branch=1),
        rollout(0, 1, 1, 1.0),
        rollout(0, 1, 1, 0.5, branch=2),
    )
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
