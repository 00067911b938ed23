"""Conversations of several rows: rewards score the last row, and its score counts for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from burnish.rewards.inputs import Item
from burnish.types import FinishReason, Rollout


def to_score(items: Iterable[Item]) -> list[Item]:
    """Select the responses that rewards are to score: none of a failed environment, where there is nothing to
    score, nor conversations that go on in another row."""
    return [item for item in items if not is_lost(item[1]) and item[1].ends_in is None]


def is_lost(rollout: Rollout) -> bool:
    """Return whether the environment of the conversation has failed."""
    return rollout.finish_reason is FinishReason.FAILED


def with_scores(items: Sequence[Item], scored: Iterable[Rollout]) -> list[Rollout]:
    """Put the results for `to_score`, in their order, back among all rollouts. Earlier rows of a conversation get the
    score of its last row, but no token rewards."""
    results = iter(scored)
    own = [rollout if is_lost(rollout) or rollout.ends_in is not None else next(results) for _, rollout in items]
    ends = {rollout.sample: rollout for rollout in own if rollout.ends_in is None and not rollout.branch}
    return [
        rollout if is_lost(rollout) or rollout.ends_in is None else _as_end(rollout, ends[rollout.sample])
        for rollout in own
    ]


def _as_end(rollout: Rollout, end: Rollout) -> Rollout:
    return replace(
        rollout, reward=end.reward, reward_parts=end.reward_parts, status=end.status, status_detail=end.status_detail
    )
