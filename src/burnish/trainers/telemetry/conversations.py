"""Metrics of conversations: how long they are, how they end, and how many of them call tools."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.observability.metrics import mean_of
from burnish.types import FinishReason, Metric, Rollout


def describe_conversations(rollouts: Sequence[Rollout], prefix: str = "") -> dict[str, Metric]:
    """Of the responses that have turns, or whose environment has failed; nothing if there is none.

    prefix: in front of the names, for an evaluation.
    """
    held = [rollout for rollout in rollouts if rollout.turns or rollout.finish_reason is FinishReason.FAILED]
    if not held:
        return {}
    spoken = [[turn for turn in rollout.turns if turn.author == "policy"] for rollout in held]
    calls = [sum(len(message.tool_calls) for turn in turns for message in turn.messages) for turns in spoken]
    pays = [rollout.environment_reward for rollout in held if rollout.environment_reward is not None]
    found = {
        "turns_mean": mean_of([len(turns) for turns in spoken]),
        "called_fraction": mean_of([count > 0 for count in calls]),
        "sampled_tokens_mean": mean_of([rollout.num_sampled() for rollout in held]),
        "out_of_turns_fraction": mean_of([rollout.finish_reason is FinishReason.TURNS for rollout in held]),
        "failed_fraction": mean_of([rollout.finish_reason is FinishReason.FAILED for rollout in held]),
        **({"environment_reward_mean": mean_of(pays)} if pays else {}),
    }
    return {f"{prefix}conversation/{name}": metric for name, metric in found.items()}
