"""The responses of a step that were given to workers while others were still being sampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from burnish.rewards.inputs import Item
from burnish.types import Rollout, RowKey

Numbered = tuple[int, Item]
"""A response and its number in the tasks of the worker pool, which it keeps until it is scored."""


class BegunResponses:
    """Numbers the responses of a step, and records which of them each reward has been given."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._begun: dict[RowKey, tuple[int, Rollout]] = {}
        self._given: set[tuple[int, int]] = set()  # (reward, number)

    def begin(self, items: Sequence[Item]) -> list[int]:
        """Register responses that were not begun before, and return their numbers."""
        numbers = [next(self._numbers) for _ in items]
        self._begun.update({rollout.key: (n, rollout) for n, (_, rollout) in zip(numbers, items, strict=True)})
        return numbers

    def has(self, rollout: Rollout) -> bool:
        """Return whether a response of this group and sample number was begun."""
        return rollout.key in self._begun

    def to_give(self, reward: int, numbered: Iterable[Numbered]) -> list[Numbered]:
        """Return the responses that the reward has not been given yet, and record them as given."""
        fresh = [(number, item) for number, item in numbered if (reward, number) not in self._given]
        self._given.update((reward, number) for number, _ in fresh)
        return fresh

    def finish(self, items: Sequence[Item]) -> list[int]:
        """Return the numbers of responses that are scored now: the number from `begin`, or a new one. A different
        response under the same key is scored anew: the earlier one came from a step that was interrupted."""
        numbers = []
        for _, rollout in items:
            number, response = self._begun.pop(rollout.key, (-1, None))
            numbers.append(number if response == rollout else next(self._numbers))
        return numbers
