"""Responses that workers score while others are still being sampled: the same scores, earlier."""

import time
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import RewardError
from burnish.rewards import ProcessRewardScorer
from burnish.types import Rollout

REWARDS = """
    import asyncio, os, time

    waiting = 0

    async def meet(response):
        global waiting
        if response == "first":
            await asyncio.sleep(0.3)
            return 0
        waiting += 1
        while waiting < 6:
            await asyncio.sleep(0.01)
        return len(response)

    async def held(response):
        global waiting
        waiting += 1
        most = waiting
        await asyncio.sleep(0.05)
        waiting -= 1
        return float(most)

    def size(response):
        if response == "loop":
            while True: pass
        if response == "exit": os._exit(3)
        if response == "raise": raise ValueError("bad day")
        return len(response)

    def slow(response): time.sleep(0.05); return len(response)
    def rank(responses): return [sorted(responses).index(r) for r in responses]
    async def distant(response): return len(response)
    def text(response): return "good"
    def wants(response, colour): return 1.0
"""


def until_idle(scorer: ProcessRewardScorer, items: Any = (), seconds: float = 30.0) -> None:
    """As an engine does: begin the items, and call again and again with nothing new."""
    scorer.begin(items)
    end = time.monotonic() + seconds
    while scorer._pool.is_busy:
        assert time.monotonic() < end
        scorer.begin([])
        time.sleep(0.01)


def rewards(scored: list[Rollout]) -> list[float | None]:
    return [rollout.reward for rollout in scored]


@pytest.mark.slow
def test_what_was_begun_is_scored_once_and_in_the_order_asked(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:size", workers=2)
    items = make_items(["a", "bb", "ccc", "dddd", "eeeee"])
    scorer.begin([items[3], items[1]])
    scorer.begin([])
    scorer.begin([items[4]])
    assert rewards(scorer.score(items)) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rewards(scorer.score(list(reversed(items)))) == [5.0, 4.0, 3.0, 2.0, 1.0]  # nothing is left over


@pytest.mark.slow
def test_workers_work_between_the_calls(make_scorer, make_items, file: Path) -> None:
    """Twenty responses of 50 ms: after they were begun and time has passed, there is nothing left to wait for."""
    scorer = make_scorer(f"{file}:slow", workers=2)
    items = make_items(["ab"] * 20)
    until_idle(scorer, items)
    scorer.take_metrics()
    assert rewards(scorer.score(items)) == [2.0] * 20
    assert scorer.take_metrics()["time/reward_worker_seconds/slow"].result() == 0.0  # no call was made again


def test_rewards_that_want_all_at_once_wait_and_the_others_do_not(make_scorer, make_items, file: Path) -> None:
    weighed = ({"name": f"{file}:{name}", "weight": weight} for name, weight in (("rank", 10.0), ("distant", 100.0)))
    scorer = make_scorer(f"{file}:size", *weighed, "exact")
    items = make_items(["bb", "a", "7"])
    scorer.begin(items[:2])
    assert rewards(scorer.score(items)) == [2 + 20 + 200, 1 + 10 + 100, 1 + 0 + 100 + 1]


@pytest.mark.slow
def test_failures_are_those_of_an_ordinary_call(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer({"name": f"{file}:size", "timeout_seconds": 1.0}, workers=2)
    items = make_items(["ab", "loop", "exit", "abc", "raise", "a"])
    scorer.begin(items[:3])
    scorer.begin(items[3:5])
    until_idle(scorer)
    scored = scorer.score(items)
    assert [r.status.value for r in scored] == ["ok", "timeout", "error", "ok", "error", "ok"]
    assert rewards(scored) == [2.0, None, None, 3.0, None, 1.0]
    assert scorer.take_metrics()["reward/failed_fraction"].result() == pytest.approx(0.5)


@pytest.mark.slow
def test_a_broken_contract_stops_and_leaves_nothing(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:text")
    items = make_items(["ab", "c"])
    with pytest.raises(RewardError, match="text"):  # by this call or, where the worker is slower, by a later one
        until_idle(scorer, items)
    assert scorer.worker_pids == []
    with pytest.raises(RewardError, match="text"):
        scorer.score(items)


def test_a_missing_column_is_told_at_once(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:wants")
    with pytest.raises(RewardError, match="colour"):
        scorer.begin(make_items(["ab"]))


def test_what_was_begun_and_is_not_asked_for_is_dropped(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:size")
    items = make_items(["a", "bb", "ccc"])
    scorer.begin(items[:2])
    assert rewards(scorer.score(items[1:])) == [2.0, 3.0]
    assert rewards(scorer.score(items)) == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_an_asynchronous_reward_awaits_what_arrives_one_by_one_together(make_scorer, make_items, file: Path) -> None:
    """All but the first answer only when six are waiting: one by one they would wait for ever."""
    items = make_items(["first", "bb", "a", "bb", "a", "bb", "a"])
    scorer = make_scorer({"name": f"{file}:meet", "timeout_seconds": 30})
    for item in items:  # the first takes the worker: the others wait for it, and are sent together
        scorer.begin([item])
    assert rewards(scorer.score(items)) == [0, 2, 1, 2, 1, 2, 1]
    bounded = make_scorer({"name": f"{file}:held", "timeout_seconds": 30, "concurrency": 3}, workers=2)
    for item in items:
        bounded.begin([item])
    assert max(rewards(bounded.score(items))) <= 3


@pytest.mark.slow
def test_without_idle_cores_only_rewards_that_wait_begin(make_scorer, make_items, file: Path) -> None:
    scorer = make_scorer(f"{file}:size", f"{file}:distant")
    items = make_items(["ab", "c"])
    assert scorer.only_waits
    scorer.begin(items, idle_cores=False)
    until_idle(scorer)
    scorer.take_metrics()
    assert rewards(scorer.score(items)) == [4.0, 2.0]
    metrics = scorer.take_metrics()
    assert metrics["time/reward_worker_seconds/distant"].result() == 0.0, "it had been scored"
    assert metrics["time/reward_worker_seconds/size"].result() > 0.0
    assert not make_scorer(f"{file}:size").only_waits
