"""Tasks for reward workers, of a few responses each, and the queue of tasks of one reward."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from burnish.rewards.calling import Arguments

BEFORE_ALL = 0
"""The age of tasks that go back into their queue. Ages of new tasks begin at 1."""


@dataclass(frozen=True, slots=True)
class Task:
    """Responses for one reward, given by its number: `items` are their numbers, `rows` their arguments.

    For a batched reward there is one row for all items. A task that is `alone` is not joined with others, because its
    response may be the one that crashed a worker.
    """

    reward: int
    items: tuple[int, ...]
    rows: tuple[Arguments, ...]
    alone: bool = False

    def only(self, item: int) -> Task:
        """The same task reduced to one response."""
        return Task(self.reward, (item,), (self.rows[self.items.index(item)],), alone=True)

    def request(self, number: int) -> list[Any]:
        """The message to a worker, whose answers repeat `number`."""
        return [number, self.reward, list(self.items), list(self.rows)]


@dataclass(slots=True, eq=False)
class TaskQueue:
    """The waiting tasks of one reward, oldest first. Of two queues, the one with the lower `age` has waited longer."""

    reward: int
    responses: int = 0
    """Number of responses in all tasks together."""
    _tasks: deque[tuple[int, Task]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def age(self) -> int:
        """Age of the oldest task. There must be one."""
        return self._tasks[0][0]

    def add(self, task: Task, age: int) -> None:
        """Queue a task that is younger than all others here."""
        self._tasks.append((age, task))
        self.responses += len(task.items)

    def put_back(self, tasks: Iterable[Task]) -> None:
        """Queue tasks before all others, in this order, because they had already been started."""
        for task in reversed(list(tasks)):
            self._tasks.appendleft((BEFORE_ALL, task))
            self.responses += len(task.items)

    def take(self) -> Task:
        """Remove the oldest task."""
        _, task = self._tasks.popleft()
        self.responses -= len(task.items)
        return task

    def take_joined(self, count: int) -> Task:
        """Remove the oldest `count` responses as one task; fewer if there are not as many, or one has to be alone."""
        if self._tasks[0][1].alone:
            return self.take()
        items: list[int] = []
        rows: list[Arguments] = []
        while self._tasks and len(items) < count and not self._tasks[0][1].alone:
            age, task = self._tasks.popleft()
            more = count - len(items)
            items += task.items[:more]
            rows += task.rows[:more]
            if more < len(task.items):
                self._tasks.appendleft((age, Task(self.reward, task.items[more:], task.rows[more:])))
        self.responses -= len(items)
        return Task(self.reward, tuple(items), tuple(rows))

    def clear(self) -> None:
        """Drop all tasks."""
        self._tasks.clear()
        self.responses = 0
