"""Outages: environments, tools or rewards that all fail, and patience with them before a run gives up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from burnish.errors import OutageError
from burnish.types import RolloutGroup

T = TypeVar("T")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 8.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Limit on waiting for the end of an outage, and the function that reports each wait."""

    seconds: float = 0.0
    say: Callable[[str], None] = lambda line: None

    def through(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`. While it raises OutageError it is repeated, after growing pauses, until
        `seconds` after the first error; then the error is raised."""
        pause, end = FIRST_PAUSE_SECONDS, None
        while True:
            try:
                return attempt()
            except OutageError as error:
                now = time.monotonic()
                end = now + self.seconds if end is None else end
                if now + pause > end:
                    raise
                self.say(f"{error.message}. Trying again for up to {end - now:.0f} s (scoring.retry_seconds)")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def check_scores(sampled: Sequence[RolloutGroup], step: int) -> None:
    """Raise OutageError if no sampled response has a score: nothing could be learned from the step."""
    responses = [rollout for group in sampled for rollout in group.rollouts]
    if responses and all(rollout.reward is None for rollout in responses):
        first = responses[0]
        raise OutageError(
            f"step {step}: none of {len(responses)} responses has a score. The first one: prompt {first.prompt_id!r}, "
            f"{first.status.value}: {first.status_detail}",
            remedy="fix what has failed, then give the same command again to continue",
        )
