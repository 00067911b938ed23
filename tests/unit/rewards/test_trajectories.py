"""Rows of one conversation: the one that ends is scored, and its score counts for all."""

from __future__ import annotations

from dataclasses import replace

from burnish.rewards.trajectories import to_score, with_scores
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout

PROMPT = Prompt("p", text="p")


def row(
    index: int, ends_in: int | None = None, reason: FinishReason = FinishReason.STOP, group: int = 0, branch: int = 0
) -> Rollout:
    return Rollout("p", group, index, (1,), (2,), (-0.5,), reason, 0, ends_in=ends_in, branch=branch)


def scored(rollout: Rollout, reward: float | None) -> Rollout:
    status = RewardStatus.ERROR if reward is None else RewardStatus.OK
    return replace(rollout, reward=reward, reward_parts={} if reward is None else {"math": reward}, status=status)


ROWS = [
    row(3, 3, branch=1),
    row(3),
    row(4, reason=FinishReason.FAILED),
    row(0, 0, group=1, branch=1),
    row(0, 0, group=1, branch=2),
    row(0, group=1),
]
ITEMS = [(PROMPT, one) for one in ROWS]


def test_only_rows_that_end_are_scored() -> None:
    assert [(r.group_id, r.sample_index) for _, r in to_score(ITEMS)] == [(0, 3), (1, 0)]


def test_all_rows_have_the_score_of_the_end() -> None:
    found = with_scores(ITEMS, [scored(ROWS[1], 0.5), scored(ROWS[5], None)])
    assert [r.reward for r in found] == [0.5, 0.5, None, None, None, None]
    assert found[0].reward_parts == {"math": 0.5}
    assert [r.status for r in found[3:]] == [RewardStatus.ERROR] * 3
    assert [r.ends_in for r in found] == [r.ends_in for r in ROWS]


def test_token_rewards_are_those_of_the_row_that_ends() -> None:
    found = with_scores(ITEMS, [replace(scored(ROWS[1], 0.5), token_rewards=(0.5,)), scored(ROWS[5], 0.0)])
    assert [r.token_rewards for r in found[:2]] == [None, (0.5,)]
    assert [r.reward for r in found[:2]] == [0.5, 0.5]
