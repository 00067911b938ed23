"""Which task a worker gets next, how much of it, and how many workers are started."""

import time
from pathlib import Path

import pytest

REWARDS = """
    import asyncio, os, time

    HERE = os.path.dirname(os.path.abspath(__file__))
    BEGUN = os.path.join(HERE, "begun")

    def note(what):
        with open(BEGUN, "a") as file:
            file.write(what)

    async def meet(response):
        note(".")
        while os.path.getsize(BEGUN) < 100:
            await asyncio.sleep(0.02)
        return 1.0

    async def waits(response):
        await asyncio.sleep(0.001)
        return 1.0

    def first(response): note(f"a{response} "); return 1.0
    def second(response): note(f"b{response} "); return 1.0
    def slow(response):
        while not os.path.exists(os.path.join(HERE, "go")): time.sleep(0.01)
        return 1.0
    async def odd(response):
        if response == "exit": os._exit(3)
        await asyncio.sleep(0)
        return float(len(response))
"""


@pytest.mark.slow
def test_all_responses_of_an_asynchronous_reward_are_awaited_at_once(make_scorer, make_items, file: Path) -> None:
    """Each waits for all hundred: with shares for workers that are busy, some would be left for a second round."""
    scorer = make_scorer({"name": f"{file}:meet", "timeout_seconds": 60}, workers=2)
    assert [r.reward for r in scorer.score(make_items(["x"] * 100))] == [1.0] * 100


@pytest.mark.parametrize("name", ["waits", "first"])
def test_no_worker_is_started_for_what_the_limit_forbids(make_scorer, make_items, file: Path, name: str) -> None:
    scorer = make_scorer({"name": f"{file}:{name}", "concurrency": 1}, workers=4)
    assert [r.reward for r in scorer.score(make_items(["x"] * 30))] == [1.0] * 30
    assert len(scorer.worker_pids) == 1


@pytest.mark.slow
def test_a_reward_without_room_does_not_hold_up_another(make_scorer, make_items, file: Path) -> None:
    """The only place of `slow` is taken until the test lets it go on; `first` goes past its queue."""
    slow = {"name": f"{file}:slow", "concurrency": 1, "timeout_seconds": 60}
    scorer = make_scorer(slow, f"{file}:first", workers=2)
    items = make_items(list("123456"))
    begun, end = file.parent / "begun", time.monotonic() + 30
    scorer.begin(items)
    while not begun.exists() or begun.read_text().count("a") < 6:
        assert time.monotonic() < end
        scorer.begin([])
        time.sleep(0.01)
    (file.parent / "go").touch()
    assert [r.reward for r in scorer.score(items)] == [2.0] * 6


def test_the_oldest_task_is_next_whichever_reward_it_is_for(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:first", f"{file}:second", workers=1)
    items = make_items(list("123"))
    for item in items:
        scorer.begin([item])
    scorer.score(items)
    assert (file.parent / "begun").read_text().split() == ["a1", "b1", "a2", "b2", "a3", "b3"]


@pytest.mark.slow
def test_a_death_among_joined_responses_costs_one(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:odd", workers=2)
    items = make_items(["a", "exit", "bb", "a", "bb", "ccc"])
    for item in items:
        scorer.begin([item])
    assert [r.reward for r in scorer.score(items)] == [1.0, None, 2.0, 1.0, 2.0, 3.0]
