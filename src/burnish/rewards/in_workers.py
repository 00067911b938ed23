"""The training process's side of rewards that run in workers, which get responses while others are being sampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from burnish.rewards.inputs import Item
from burnish.rewards.pool import MAX_CONCURRENT, Outcomes, WorkerPool
from burnish.rewards.specs import Numbered, RunReward
from burnish.rewards.tasks import Task
from burnish.types import Rollout, RowKey

MAX_CHUNK = 32  # responses per message to a worker


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


class WorkerRewards:
    """The rewards that score in the workers of a pool. In its tasks a reward has its place among these rewards."""

    def __init__(self, rewards: Sequence[RunReward], pool: WorkerPool) -> None:
        self._rewards = rewards
        self._pool = pool
        self.begun = BegunResponses()

    def begin(self, numbered: Sequence[Numbered], *, idle_cores: bool) -> None:
        """Give workers responses that `begun` has numbered, for the rewards that can begin."""
        early = [place for place, one in enumerate(self._rewards) if one.can_begin(idle_cores=idle_cores)]
        try:
            self._pool.begin(self._tasks(early, self.begun, numbered))
        except BaseException:
            self.begun = BegunResponses()
            raise

    def outcomes(self, items: Sequence[Item], seen: Sequence[Item]) -> Outcomes:
        """The outcome of every (reward, position), of responses begun before and of others. `seen` are the items as
        rewards see them."""
        begun, self.begun = self.begun, BegunResponses()
        numbers = begun.finish(items)
        tasks = self._tasks(range(len(self._rewards)), begun, list(zip(numbers, seen, strict=True)))
        position_of = {number: position for position, number in enumerate(numbers)}
        return {
            (self._rewards[place].number, position_of[number]): outcome
            for (place, number), outcome in self._pool.run(tasks).items()
            if number in position_of  # a response may have been begun and then dropped by the caller
        }

    def _tasks(self, places: Iterable[int], begun: BegunResponses, numbered: Sequence[Numbered]) -> list[Task]:
        """Return tasks for the responses that the rewards at these places score and have not been given yet."""
        return [
            task
            for place in places
            for task in self._tasks_of(place, begun.to_give(place, self._rewards[place].select(numbered)))
        ]

    def _tasks_of(self, place: int, numbered: Sequence[Numbered]) -> list[Task]:
        """The calls of one reward for these responses."""
        if not numbered:
            return []
        signature = self._rewards[place].signature
        if signature.batched:
            arguments = signature.batch_arguments([item for _, item in numbered])
            return [Task(place, tuple(number for number, _ in numbered), (arguments,))]
        # Several tasks per worker, so that one with slow responses does not delay the end. An asynchronous reward
        # instead gets as many responses as it may await at once.
        share = -(-len(numbered) // self._pool.size)
        size = min(MAX_CONCURRENT, share) if signature.asynchronous else max(1, min(MAX_CHUNK, share // 4))
        return [
            Task(
                place,
                tuple(number for number, _ in numbered[start : start + size]),
                tuple(signature.arguments(item) for _, item in numbered[start : start + size]),
            )
            for start in range(0, len(numbered), size)
        ]
