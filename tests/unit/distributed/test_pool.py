"""The pool of rollout workers, over workers that are lost, slow or wrong on purpose."""

import dataclasses
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from burnish.distributed import pool as pool_module
from burnish.distributed.peers import RoleLostError, Stop
from burnish.distributed.pool import MAX_LOSSES, RolloutPool, Worker
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.rollouts.engine import Sampling
from burnish.types import Begun, FinishReason, Metric, Reduction, Rollout, RolloutRequest

SAMPLING = Sampling(max_response_tokens=4)
REQUESTS = [RolloutRequest.of(f"p{i}", i, (1, 2), (0, 1)) for i in range(6)]


Answer = tuple[list[Rollout], dict[str, Metric]]


def rollout_of(request: RolloutRequest, index: int, what: Begun, version: int) -> Rollout:
    prompt = (request.prompt_id, request.group_id, index, request.prompt_tokens)
    end = (what.response_tokens, what.rollout_logprobs, FinishReason.LENGTH, version)
    return Rollout(*prompt, *end, versions=what.versions)


def standing(pool: RolloutPool) -> list[tuple[str, str]]:
    return [(worker.name, worker.standing) for worker in pool.processes()]


class FakeProcess:
    standing = "idle"

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.killed = threading.Event()

    def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.killed.set()


class FakeEngine:
    """Samples the number of its request; `fate` is asked before every portion and may raise."""

    def __init__(self, name: str, fate: Callable[[], None] = lambda: None) -> None:
        self.process = FakeProcess(name)
        self.fate = fate
        self.version = 0
        self.calls = 0

    def generate(self, requests: list[RolloutRequest], sampling: Sampling, *, seed: int, step: int) -> Answer:
        self.fate()
        self.calls += 1
        samples = [(r, i, Begun((r.group_id, i), (0.0, 0.0))) for r in requests for i in r.sample_indices]
        rollouts = [rollout_of(*sample, self.version) for sample in samples]
        return rollouts, {"rollout/calls": Metric(Reduction.SUM, 1)}

    def load(self, shared: Any) -> None:
        self.version = shared.layout.version


def pool_of(
    *engines: FakeEngine, lanes: int = 3, restarts: int = 0, start: Any = None, partial: bool = False
) -> tuple[RolloutPool, list[str]]:
    said: list[str] = []
    again = start or (lambda _: FakeEngine("again"))
    seats: list[Any] = list(engines)
    workers = [Worker(engine, again) for engine in seats]
    return RolloutPool(workers, lanes=lanes, restarts=restarts, say=said.append, partial=partial), said


def weights(version: int) -> Weights:
    return Weights(version, lambda: iter([("w", torch.zeros(2))]))


def come_back(pool: RolloutPool) -> None:
    """Waits for the start of the second worker, which was lost."""
    returning = pool._workers[1].returning
    assert returning is not None
    returning.join(60)


def lost(name: str = "b") -> None:
    raise RoleLostError(f"generate: process {name!r} ended", remedy="", process=name)


def waited(event: threading.Event) -> None:
    assert event.wait(60.0)


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
    taken = threading.Event()

    def dies() -> None:
        taken.set()
        lost()

    pool, said = pool_of(FakeEngine("a", lambda: waited(taken)), FakeEngine("b", dies))
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    limit = "0 restarts an hour is the limit (cluster.restarts)"
    assert said == [f"generate: process 'b' ended; it is not started again: {limit}"]
    assert pool.take_metrics()["rollout/lost_workers"].result() == 1


def test_a_worker_that_is_lost_for_good_is_not_asked_again() -> None:
    dies = Mock(side_effect=lost)
    pool, said = pool_of(FakeEngine("a", lambda: time.sleep(0.02)), FakeEngine("b", dies))
    for step in range(MAX_LOSSES + 1):
        assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=step)) == WANTED
    pool.take_metrics()
    assert (dies.call_count, len(said)) == (1, 1)


def test_a_lost_worker_is_started_again_within_the_limit() -> None:
    pool, said = pool_of(FakeEngine("b", lost), restarts=1)
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    assert said[0].endswith("it is started again: nothing to do")


def test_a_call_that_is_done_does_not_wait_for_the_start_of_a_lost_worker() -> None:
    done = threading.Event()

    def start(_: threading.Event) -> FakeEngine:
        waited(done)
        return FakeEngine("b")

    def until_the_other_is_gone() -> None:
        while not pool._workers[1].gone:
            time.sleep(0.002)

    pool, said = pool_of(FakeEngine("a", until_the_other_is_gone), FakeEngine("b", lost), restarts=1, start=start)
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    assert standing(pool)[1] == ("b", "lost")
    done.set()
    come_back(pool)
    assert said[-1] == "b is back"
    assert standing(pool)[1] == ("b", "its first weights, idle")


def test_a_worker_that_comes_back_joins_a_call_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call began without it, and waits for it in the end: the other worker is slow until it has sampled."""
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    second_call, may_start, sampled = threading.Event(), threading.Event(), threading.Event()
    tries: list[None] = []

    def start(_: threading.Event) -> FakeEngine:
        tries.append(None)
        if len(tries) == 1:
            raise RuntimeError("no node has room")
        waited(may_start)
        return FakeEngine("b", sampled.set)

    def slow() -> None:
        if second_call.is_set():
            may_start.set()
            waited(sampled)
        time.sleep(0.02)  # or the other one is never asked

    pool, _ = pool_of(FakeEngine("a", slow), FakeEngine("b", lost), restarts=3, start=start)
    while not tries:  # until b, which is asked sooner or later, is gone
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    come_back(pool)
    second_call.set()
    pool.sync(weights(7))
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=2)) == WANTED
    assert sampled.is_set()


def test_a_lost_trainer_is_not_taken_for_the_worker_that_reads_its_weights() -> None:
    worker = FakeEngine("a")
    worker.load = Mock(side_effect=RoleLostError("sync: 'trainer 0' ended", remedy="", process="trainer 0"))  # type: ignore[method-assign]
    pool, said = pool_of(worker, restarts=3)
    pool.sync(weights(7))
    with pytest.raises(RoleLostError, match="'trainer 0' ended"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert (said, standing(pool)) == ([], [("a", "its first weights, idle")])


def refuse_threads(monkeypatch: pytest.MonkeyPatch, but: Callable[[threading.Thread], bool]) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if not but(thread):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.mark.parametrize("started", [0, 1])
def test_threads_that_run_out_end_a_call_and_leave_none_behind(started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, _ = pool_of(FakeEngine("a"), FakeEngine("b"))
    left = iter([True] * started)
    refuse_threads(monkeypatch, but=lambda thread: next(left, False))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert not [thread for thread in threading.enumerate() if thread.name in "ab"]


def test_no_thread_for_the_start_of_a_lost_worker_loses_only_that_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, said = pool_of(FakeEngine("a", lambda: time.sleep(0.02)), FakeEngine("b", lost), restarts=1)
    refuse_threads(monkeypatch, but=lambda thread: thread.name in "ab")
    while len(said) < 2:  # until b is asked
        assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    assert said[1] == "b cannot be started again: can't start new thread"


def test_no_worker_left_is_an_error() -> None:
    pool, _ = pool_of(FakeEngine("a", lambda: lost("a")), FakeEngine("b", lost))
    with pytest.raises(RolloutError, match="no rollout worker is left"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)


def test_prompts_that_end_every_worker_are_named() -> None:
    pool, _ = pool_of(FakeEngine("b", lost), lanes=1, restarts=MAX_LOSSES, start=lambda _: FakeEngine("b", lost))
    with pytest.raises(RolloutError, match=r"3 workers were lost over the same prompts \(p0, p1, p2, p3, p4\)"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)


def test_a_worker_that_ends_its_portion_after_an_error_of_another_does_not_hang_the_call() -> None:
    def wrong() -> None:
        time.sleep(0.1)  # until the other one has begun
        raise ValueError("a bug of the engine")

    pool, _ = pool_of(FakeEngine("a", wrong), FakeEngine("b", lambda: time.sleep(0.3)), lanes=2)
    with pytest.raises(ValueError, match="a bug of the engine"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert not [thread for thread in threading.enumerate() if thread.name in "ab"]


def test_every_worker_samples_with_the_weights_of_the_last_sync() -> None:
    pool, _ = pool_of(FakeEngine("a"), FakeEngine("b", lost), restarts=1)
    for version in (3, 4):
        pool.sync(weights(version))
        rollouts = pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
        assert {rollout.policy_version for rollout in rollouts} == {version}


def test_it_says_what_the_workers_do_and_with_which_weights() -> None:
    pool, _ = pool_of(FakeEngine("a"), FakeEngine("b", lost))
    assert standing(pool) == [("a", "its first weights, idle"), ("b", "its first weights, idle")]
    pool.sync(weights(3))
    pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert ("a", "version 3, idle") in standing(pool)
    assert {doing for name, doing in standing(pool) if name == "b"} <= {"lost", "its first weights, idle"}


def test_a_worker_that_can_be_had_again_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is away when it is lost, and is there again at a later step."""
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    start = Mock(side_effect=[RuntimeError("no node has room"), FakeEngine("b")])
    back_again = threading.Event()
    pool, said = pool_of(FakeEngine("b", lost), restarts=3, start=start)
    with pytest.raises(RolloutError):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert standing(pool) == [("b", "lost")]

    def say(line: str) -> None:
        said.append(line)
        if line == "b is back":
            back_again.set()

    pool._say = say
    pool.sync(weights(7))
    assert back_again.wait(60.0)
    assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=2)) == WANTED
    assert standing(pool)[0][1].startswith("version 7")
    pool.sync(weights(8))
    assert start.call_count == 2  # nobody is missing


def test_a_worker_that_is_gone_is_tried_again_only_now_and_then() -> None:
    start = Mock(side_effect=RuntimeError("no node has room"))
    pool, said = pool_of(FakeEngine("b", lost), restarts=3, start=start)
    with pytest.raises(RolloutError):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    pool.sync(weights(7))
    assert said[1:] == ["b cannot be started again: no node has room"]
    assert start.call_count == 1
    assert not pool._workers[0].is_returning


def test_the_end_gives_up_a_start_that_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    begun, attempts = threading.Event(), []

    def start(given_up: threading.Event) -> FakeEngine:
        attempts.append(given_up)
        if len(attempts) == 1:
            raise RuntimeError("no node has room")
        begun.set()
        waited(given_up)
        raise RuntimeError("given up")

    pool, said = pool_of(FakeEngine("b", lost), lanes=1, restarts=3, start=start)
    with pool:
        with pytest.raises(RolloutError):
            pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
        pool.sync(weights(7))
        waited(begun)
    assert len(attempts) == 2
    assert not pool._workers[0].is_returning
    assert not any("given up" in line for line in said)  # nobody wants to know that any more


def test_a_process_that_starts_after_the_end_is_closed() -> None:
    late, ending = FakeEngine("late"), threading.Event()

    def start(_: threading.Event) -> FakeEngine:
        ending.set()
        pool.__exit__(None, None, None)
        return late

    pool, _ = pool_of(FakeEngine("b", lost), restarts=5, start=start)
    with pytest.raises(RolloutError):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert ending.is_set()
    assert late.process.closed


def test_the_end_closes_the_processes() -> None:
    engines = FakeEngine("a"), FakeEngine("b")
    pool, _ = pool_of(*engines)
    with pool:
        pool.sync(weights(1))
    assert [engine.process.closed for engine in engines] == [True, True]


@pytest.mark.parametrize("seed", range(30))
def test_no_schedule_of_losses_and_delays_changes_a_rollout(seed: int) -> None:
    chance = random.Random(seed)

    def fate() -> None:
        time.sleep(chance.random() * 0.003)
        if chance.random() < 0.2:
            lost()

    engines = [FakeEngine("b", fate) for _ in range(3)]
    pool, _ = pool_of(*engines, lanes=6, restarts=100, start=lambda _: FakeEngine("b", fate))
    try:
        assert tokens(pool.generate(REQUESTS, SAMPLING, seed=0, step=1)) == WANTED
    except RolloutError as error:
        assert "workers were lost over the same prompts" in str(error)  # noqa: PT017  the other allowed end


def test_stop_ends_an_open_call_and_starts_nothing_again() -> None:
    begun = threading.Event()

    def working() -> None:
        begun.set()
        assert engine.process.killed.wait(10)
        lost("a")

    engine = FakeEngine("a", working)
    pool, said = pool_of(engine, restarts=3)
    stopping = threading.Thread(target=lambda: begun.wait(10) and pool.stop())
    stopping.start()
    with pytest.raises(RolloutError, match="sampling was stopped"):
        pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    stopping.join()
    assert not said
    pool.stop()  # nothing is open


def test_kept_weights_stay_as_they_were() -> None:
    weight = torch.zeros(2)
    pool, _ = pool_of(FakeEngine("a"))
    kept = pool.keep(Weights(3, lambda: iter([("w", weight)])))
    weight += 1
    assert kept.version == 3
    assert dict(kept.tensors())["w"].tolist() == [0, 0]
    assert pool.keep(kept).tensors is kept.tensors, "what is kept is not copied again"


LENGTH = 4
Progress = Callable[[list[RolloutRequest]], None]


class TokenEngine(FakeEngine):
    """Samples the numbers 0, 1, 2, 3, one for all of its samples at a time, each with the version of that moment.
    `meanwhile` is called after every token with what is there, and may raise."""

    def __init__(self, name: str, meanwhile: Progress) -> None:
        super().__init__(name)
        self.meanwhile = meanwhile

    def generate_until(
        self, requests: list[RolloutRequest], sampling: Sampling, *, seed: int, step: int, stop: Stop
    ) -> tuple[list[Rollout], list[RolloutRequest], dict[str, Metric]]:
        done: list[Rollout] = []
        while requests and not was_called(stop):
            requests = [longer(request, self.version) for request in requests]
            whole = [r for r in requests if len(r.begun[0].response_tokens) == LENGTH]
            done += [rollout_of(r, i, begun, begun.versions[0][1]) for r in whole for i, begun in r.samples()]
            requests = [request for request in requests if request not in whole]
            self.meanwhile(requests)
        return done, requests, {"rollout/calls": Metric(Reduction.SUM, 1)}


def was_called(stop: Stop) -> bool:
    ready, _, _ = select.select((stop,), (), (), 0)
    return bool(ready)


def longer(request: RolloutRequest, version: int) -> RolloutRequest:
    begun = []
    for _, known in request.samples():
        first = len(known.response_tokens)
        is_new = not known.versions or known.versions[-1][1] != version
        versions = (*known.versions, (first, version)) if is_new else known.versions
        begun.append(Begun((*known.response_tokens, first), (*known.rollout_logprobs, 0.0), versions))
    return dataclasses.replace(request, begun=tuple(begun))


def partial_pool(engines: list[TokenEngine], start: Callable[[], TokenEngine], lanes: int = 3) -> RolloutPool:
    pool, _ = pool_of(*engines, lanes=lanes, restarts=99, start=lambda _: start(), partial=True)
    pool.sync(weights(0))
    return pool


def test_new_weights_reach_responses_that_are_being_sampled() -> None:
    """Version 1 after the first token, version 2 after the third."""
    version, tokens_of_all = 0, 0

    def meanwhile(_: list[RolloutRequest]) -> None:
        nonlocal version, tokens_of_all
        tokens_of_all += 1
        if tokens_of_all in (1, 3):
            version += 1
            pool.renew(weights(version))

    engine = TokenEngine("a", meanwhile)
    pool = partial_pool([engine], lambda: engine, lanes=1)
    rollouts = pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert tokens(rollouts) == [(0, 1, 2, 3)] * 12
    assert {rollout.versions for rollout in rollouts} == {((0, 0), (1, 1), (3, 2))}
    assert pool.take_metrics()["rollout/calls"].result() == 3


def test_a_lost_worker_costs_what_it_had_begun_since_it_last_stopped() -> None:
    """Its second token is of version 1 and lost; the first, of version 0, is not."""
    calls = 0

    def meanwhile(_: list[RolloutRequest]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            pool.renew(weights(1))
        if calls == 2:
            pool.sync(weights(2))
            lost()

    pool = partial_pool([TokenEngine("b", meanwhile)], lambda: TokenEngine("again", lambda _: None), lanes=1)
    rollouts = pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert tokens(rollouts) == [(0, 1, 2, 3)] * 12
    assert {rollout.versions for rollout in rollouts} == {((0, 0), (1, 2))}


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_of_new_weights_and_lost_workers_samples_every_token_once(seed: int) -> None:
    """Versions within a response only rise, and the pool never gives a worker older weights than it had."""
    dice, lock, published, losses = random.Random(seed), threading.Lock(), 0, 0

    def meanwhile(_: list[RolloutRequest]) -> None:
        nonlocal published, losses
        with lock:
            fate = dice.random()
            if fate < 0.25:
                published += 1
                pool.renew(weights(published))
            dies = fate > 0.8 and losses < MAX_LOSSES - 1
            losses += dies
        if dies:
            lost()

    def engine() -> TokenEngine:
        return TokenEngine("b", meanwhile)

    pool = partial_pool([engine() for _ in range(1 + seed % 3)], engine)
    rollouts = pool.generate(REQUESTS, SAMPLING, seed=0, step=1)
    assert [(r.group_id, r.sample_index) for r in rollouts] == WANTED
    assert tokens(rollouts) == [(0, 1, 2, 3)] * 12
    for rollout in rollouts:
        versions = [version for _, version in rollout.versions]
        assert versions == sorted(set(versions))
        assert rollout.versions[0][0] == 0
        assert versions[-1] <= published
