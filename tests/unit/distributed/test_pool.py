"""The pool of rollout workers, over workers that are lost, slow or wrong on purpose."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from burnish.distributed.pool import MAX_LOSSES, RolloutPool, Worker
from burnish.distributed.processes import RoleLostError
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.rollouts.engine import Sampling
from burnish.types import FinishReason, Metric, Reduction, Rollout, RolloutRequest

SAMPLING = Sampling(max_response_tokens=4)
REQUESTS = [RolloutRequest(f"p{i}", i, (1, 2), (0, 1)) for i in range(6)]


class FakeProcess:
    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    """Samples the number of its request; `fate` is asked before every portion and may raise."""

    def __init__(self, name: str, fate: Callable[[], None] = lambda: None) -> None:
        self.process = FakeProcess(name)
        self.fate = fate
        self.version = 0
        self.calls = 0

    def generate(self, requests: list[RolloutRequest], sampling: Sampling, *, seed: int, step: int) -> list[Rollout]:
        self.fate()
        self.calls += 1
        return [
            Rollout(
                r.prompt_id,
                r.group_id,
                i,
                r.prompt_tokens,
                (r.group_id, i),
                (0.0, 0.0),
                FinishReason.STOP,
                self.version,
            )
            for r in requests
            for i in r.sample_indices
        ]

    def load(self, shared: Any) -> None:
        self.version = shared.layout.version

    def ask(self, method: str) -> dict[str, Metric]:
        assert method == "take_metrics"
        return {"rollout/calls": Metric(Reduction.SUM, self.calls)}


def pool_of(
    *engines: FakeEngine, lanes: int = 3, restarts: int = 0, start: Any = None
) -> tuple[RolloutPool, list[str]]:
    said: list[str] = []
    again: Any = start or (lambda: FakeEngine("again"))
    seats: list[Any] = list(engines)
    workers = [Worker(engine, again) for engine in seats]
    return RolloutPool(workers, lanes=lanes, restarts=restarts, say=said.append), said


def lost() -> None:
    raise RoleLostError("generate: process 'b' ended", remedy="", process="b")


def tokens(rollouts: list[Rollout]) -> list[tuple[int, ...]]:
    return [rollout.response_tokens for rollout in rollouts]


WANTED = [(i, sample) for i in range(6) for sample in (0, 1)]


def test_rollouts_come_in_the_order_of_the_requests() -> None:
    pool, _ = pool_of(FakeEngine("a"), FakeEngine("b"))
    finished: list[Rollout] = []
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1, on_finished=finished.extend)) == WANTED
    assert sorted(tokens(finished)) == WANTED
    assert pool.take_metrics()["rollout/calls"].result() == 3


def test_what_a_lost_worker_had_goes_to_another() -> None:
    pool, said = pool_of(FakeEngine("a", lambda: time.sleep(0.02)), FakeEngine("b", lost))
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    assert said == ["generate: process 'b' ended\n  -> ; it is not started again: 0 restarts an hour is the limit"]
    assert pool.take_metrics()["rollout/lost_workers"].result() == 1


def test_a_worker_that_is_lost_for_good_is_not_asked_again() -> None:
    asked: list[int] = []

    def dies() -> None:
        asked.append(1)
        lost()

    pool, said = pool_of(FakeEngine("a", lambda: time.sleep(0.02)), FakeEngine("b", dies))
    for step in range(MAX_LOSSES + 1):
        assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=step)) == WANTED
    pool.take_metrics()
    assert (len(asked), len(said)) == (1, 1)


def test_a_lost_worker_is_started_again_within_the_limit() -> None:
    pool, said = pool_of(FakeEngine("b", lost), restarts=1)
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    assert "it is started again" in said[0]


def test_no_worker_left_is_an_error() -> None:
    pool, _ = pool_of(FakeEngine("a", lost), FakeEngine("b", lost))
    with pytest.raises(RolloutError, match="no rollout worker is left"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)


def test_prompts_that_end_every_worker_are_named() -> None:
    pool, _ = pool_of(FakeEngine("a", lost), lanes=1, restarts=MAX_LOSSES, start=lambda: FakeEngine("a", lost))
    with pytest.raises(RolloutError, match=r"3 workers were lost over the same prompts \(p0, p1, p2, p3, p4\)"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)


def test_an_error_of_an_engine_is_raised_as_it_is() -> None:
    def wrong() -> None:
        raise ValueError("a bug of the engine")

    pool, _ = pool_of(FakeEngine("a", wrong))
    with pytest.raises(ValueError, match="a bug of the engine"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "a"]


def test_a_worker_that_ends_its_portion_after_an_error_of_another_does_not_hang_the_call() -> None:
    def wrong() -> None:
        time.sleep(0.1)  # until the other one has begun
        raise ValueError("a bug of the engine")

    pool, _ = pool_of(FakeEngine("a", wrong), FakeEngine("b", lambda: time.sleep(0.3)), lanes=2)
    with pytest.raises(ValueError, match="a bug of the engine"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert not [thread for thread in threading.enumerate() if thread.name == "b"]


def test_every_worker_samples_with_the_weights_of_the_last_sync() -> None:
    pool, _ = pool_of(FakeEngine("a"), FakeEngine("b", lost), restarts=1)
    for version in (3, 4):
        pool.sync(Weights(version, lambda: iter([("w", torch.zeros(2))])))
        rollouts = pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
        assert {rollout.policy_version for rollout in rollouts} == {version}


def test_the_end_closes_the_processes() -> None:
    engines = FakeEngine("a"), FakeEngine("b")
    pool, _ = pool_of(*engines)
    with pool:
        pool.sync(Weights(1, lambda: iter([("w", torch.zeros(2))])))
    assert [engine.process.closed for engine in engines] == [True, True]


@pytest.mark.parametrize("seed", range(30))
def test_no_schedule_of_losses_and_delays_changes_a_rollout(seed: int) -> None:
    chance = random.Random(seed)

    def fate() -> None:
        time.sleep(chance.random() * 0.003)
        if chance.random() < 0.2:
            lost()

    pool, _ = pool_of(
        *(FakeEngine(name, fate) for name in "abc"), lanes=6, restarts=100, start=lambda: FakeEngine("again", fate)
    )
    try:
        assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    except RolloutError as error:
        assert "workers were lost over the same prompts" in str(error)  # noqa: PT017  the other allowed end
