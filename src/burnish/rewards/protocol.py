"""The scorer protocol: rollouts in, the same rollouts with reward, parts and status out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from burnish.types import Metric, Prompt, Rollout


class RewardScorer(Protocol):
    """Scores responses. A failed one keeps `reward=None` with its status and detail; it is never a silent 0."""

    def begin(self, items: Sequence[tuple[Prompt, Rollout]]) -> None:
        """Start with these as far as they can be scored one by one and elsewhere, without waiting. Called again and
        again while others are still being sampled, also with no items; `score` is then called with all of them."""
        ...

    def score(self, items: Sequence[tuple[Prompt, Rollout]]) -> list[Rollout]:
        """The rollouts in the same order with reward, reward_parts, token_rewards and status set."""
        ...

    def take_metrics(self) -> dict[str, Metric]:
        """Failures by status and domain, and seconds spent, since the last call. Each number is handed over once: the
        next call begins at 0."""
        ...

    def close(self) -> None:
        """End the worker processes."""
        ...
