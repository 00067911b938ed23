"""Metrics of conversations: how long they are, how they end, and how many of them call tools."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.observability.metrics import mean_of
from burnish.types import FinishReason, Metric, Rollout, sample_of


def describe_conversations(rollouts: Sequence[Rollout], prefix: str = "") -> dict[str, Metric]:
    """Of the responses that have turns, or whose environment has failed; nothing if there is none.

    prefix: in front of the names, for an evaluation.
    """
    held: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.turns or rollout.finish_reason is FinishReason.FAILED:
            held.setdefault(sample_of(rollout), []).append(rollout)
    if not held:
        return {}
    spoken = [[turn for row in rows for turn in row.turns if turn.author == "policy"] for rows in held.values()]
    calls = [sum(len(message.tool_calls) for turn in turns for message in turn.messages) for turns in spoken]
    ends = [rows[-1] for rows in held.values()]
    pays = [rollout.environment_reward for rollout in ends if rollout.environment_reward is not None]
    found = {
        "turns_mean": mean_of([len(turns) for turns in spoken]),
        "called_fraction": mean_of([count > 0 for count in calls]),
        "sampled_tokens_mean": mean_of([sum(row.num_sampled() for row in rows) for rows in held.values()]),
        **({} if prefix else {"rows_mean": mean_of([len(rows) for rows in held.values()])}),
        "out_of_turns_fraction": mean_of([rollout.finish_reason is FinishReason.TURNS for rollout in ends]),
        "failed_fraction": mean_of([rollout.finish_reason is FinishReason.FAILED for rollout in ends]),
        **({"environment_reward_mean": mean_of(pays)} if pays else {}),
    }
    return {f"{prefix}conversation/{name}": metric for name, metric in found.items()}
