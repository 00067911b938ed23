"""The scorer protocol: it takes rollouts and returns them with reward, parts and status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from burnish.rewards.outcome import Outcome
from burnish.types import Metric, Prompt, Rollout


class RewardScorer(Protocol):
    """Scores responses. A failed one keeps `reward=None`, with a status and detail. It never becomes a silent 0."""

    def begin(self, items: Sequence[tuple[Prompt, Rollout]], *, idle_cores: bool = True) -> None:
        """Start scoring these in the background, without waiting, if they can be scored one by one. Without idle cores,
        only rewards that wait for others rather than compute are started.

        Called repeatedly while other responses are still being sampled, also with no items. Finally `score` is called
        with all of them.
        """

    def score(self, items: Sequence[tuple[Prompt, Rollout]]) -> list[Rollout]:
        """Return the rollouts in the same order, with reward, reward_parts, token_rewards and status set."""

    def take_metrics(self) -> dict[str, Metric]:
        """Return failures by status and domain, and seconds spent, since the last call, and reset them."""

    def close(self) -> None:
        """End the worker processes."""


class ScoringModels(Protocol):
    """The reward models of a run (`model:PATH`), in this process or in a separate one."""

    def begin(self, label: str, items: Sequence[tuple[Prompt, Rollout]]) -> Callable[[], list[Outcome]]:
        """Start scoring the responses with the model of the reward of this label. The returned function waits for the
        outcomes, one per response, in order, and raises the errors of scoring."""
