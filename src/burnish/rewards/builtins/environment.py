"""The reward that the environment of a conversation itself gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from burnish.types import Score


class Environment:
    """The environment's reward for the conversation; None (missing) if it gives none.

    With `by_turn`, each turn's own reward is placed on the last token of that turn, and the rest of the total on
    the last token of the last turn, so that estimators by token or turn see when it was earned.
    """

    def __init__(
        self,
        by_turn: Annotated[bool, "pay each turn its own reward on its last token, and the rest at the end"] = False,
    ) -> None:
        self._by_turn = by_turn

    def __call__(
        self, environment_reward: float | None, turns: Sequence[Mapping[str, Any]], response_tokens: Sequence[int]
    ) -> Score | float | None:
        if environment_reward is None:
            return None
        spoken = [turn for turn in turns if turn["author"] == "policy" and turn["stop"] > turn["start"]]
        if not self._by_turn or not spoken:
            return environment_reward
        rewards = [0.0] * len(response_tokens)
        for turn in spoken:
            rewards[turn["stop"] - 1] += turn.get("reward") or 0.0
        rewards[spoken[-1]["stop"] - 1] += environment_reward - sum(rewards)
        return Score(environment_reward, token_rewards=tuple(rewards))
