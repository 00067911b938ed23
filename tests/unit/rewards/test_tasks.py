"""The queue of one reward: its order, and what it joins and divides."""

from hypothesis import given
from hypothesis import strategies as st

from burnish.rewards.tasks import BEFORE_ALL, Task, TaskQueue


def task(*items: int, alone: bool = False) -> Task:
    return Task(3, items, tuple({"response": str(item)} for item in items), alone=alone)


def queue_of(*tasks: Task) -> TaskQueue:
    queue = TaskQueue(3)
    for age, one in enumerate(tasks, start=1):
        queue.add(one, age)
    return queue


def test_what_is_alone_is_joined_with_nothing() -> None:
    queue = queue_of(task(7))
    queue.put_back([task(4, alone=True), task(5, alone=True)])
    assert (queue.age, queue.responses) == (BEFORE_ALL, 3)
    assert [queue.take_joined(9) for _ in range(3)] == [task(4, alone=True), task(5, alone=True), task(7)]
    queue = queue_of(task(0), task(1, alone=True), task(2))
    assert queue.take_joined(9) == task(0)


@given(st.lists(st.integers(1, 9), max_size=12), st.lists(st.integers(1, 9), min_size=1))
def test_every_response_is_taken_once_and_in_order(sizes: list[int], takes: list[int]) -> None:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    queue = queue_of(*(task(*range(start, start + size)) for start, size in zip(starts, sizes, strict=True)))
    taken: list[int] = []
    while queue:
        count = takes[len(taken) % len(takes)]
        waiting = queue.responses
        one = queue.take_joined(count)
        assert one == task(*one.items)
        assert len(one.items) == min(count, waiting)
        assert queue.responses == waiting - len(one.items)
        taken += one.items
    assert taken == list(range(sum(sizes)))
