"""Batches of the groups that are finished first, from an engine that takes its time with some."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from burnish.config.domains import ALL
from burnish.data.feeds import DomainFeeds, EncodedPrompt
from burnish.data.shares import Shares
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.rollouts.engine import OnFinished, Sampling
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.difficulty import Filter, PassRates
from burnish.trainers.rl.domains import Domain, Domains
from burnish.trainers.rl.open_places import OpenPlaces
from burnish.trainers.rl.supply_window import SupplyWindow
from burnish.trainers.telemetry.stopwatch import Stopwatch
from burnish.types import FinishReason, Metric, Prompt, Reduction, RewardStatus, Rollout, RolloutRequest

SIZE = 2
"""Groups of a step."""
LAST = 6
Before = Callable[[int], None]
"""What happens before a group, by number, is finished: a wait, or an error."""


class Engine:
    """Finishes one group after the other, each with the version of that moment."""

    def __init__(self, before: Before) -> None:
        self.before = before
        self.version = 0
        self.stopped = threading.Event()
        self.asked: list[tuple[int, str, tuple[int, ...]]] = []

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished
    ) -> list[Rollout]:
        for request in requests:
            self.asked.append((step, request.prompt_id, request.sample_indices))
            version = self.version
            self.before(request.group_id)
            on_finished([rollout(request, index, version) for index in request.sample_indices])
        return []

    def keep(self, weights: Weights) -> Weights:
        return weights

    def sync(self, weights: Weights) -> None:
        self.version = weights.version

    renew = sync

    def stop(self) -> None:
        self.stopped.set()

    def take_metrics(self) -> dict[str, Metric]:
        return {}


class Scorer:
    """Gives every response 1, or, if its prompt is not `dull`, its index; not to be asked by two threads at once."""

    def __init__(self, dull: Callable[[int], bool]) -> None:
        self.dull = dull
        self.busy = threading.Lock()
        self.checked: list[int] = []

    def check_failures(self, items: Sequence[tuple[Prompt, Rollout]], scored: Sequence[Rollout]) -> None:
        self.checked.append(len(scored))

    def score(self, members: Sequence[tuple[Prompt, Rollout]], *, checks: bool = True) -> list[Rollout]:
        assert self.busy.acquire(blocking=False)
        rewards = [1.0 if self.dull(int(str(prompt.text))) else float(r.sample_index) for prompt, r in members]
        self.busy.release()
        scored = zip(members, rewards, strict=True)
        return [dataclasses.replace(r, reward=reward, status=RewardStatus.OK) for (_, r), reward in scored]

    def take_metrics(self) -> dict[str, Metric]:
        return {}


class Feed:
    """Five prompts, again and again, so that some come twice in a step of more. Like a sampler of a mixture, it is not
    to be asked by two threads at once."""

    def __init__(self) -> None:
        self.busy = threading.Lock()

    def take(self, count: int, position: int) -> list[EncodedPrompt]:
        assert self.busy.acquire(blocking=False)
        time.sleep(0.0001)
        self.busy.release()
        return [EncodedPrompt(Prompt(f"p{n % 5}", text=f"{n}"), (n,)) for n in range(position, position + count)]

    def __len__(self) -> int:
        return 5


def rollout(request: RolloutRequest, index: int, version: int) -> Rollout:
    return Rollout(request.prompt_id, request.group_id, index, request.prompt_tokens, (2, 3), (-0.1, -1 / 3),
                   FinishReason.STOP, version)  # fmt: skip


def weights(version: int) -> Weights:
    return Weights(version, lambda: iter(()))


def supply_of(before: Before, progress: Progress, *, window: int, staleness: int = 1, size: int = SIZE,
              greedy: bool = False, refills: int | None = None,
              dull: Callable[[int], bool] = lambda _: True) -> tuple[SupplyWindow, Engine]:  # fmt: skip
    dynamic = refills is not None
    algorithm = SimpleNamespace(overlong_buffer=None, dynamic_sampling=dynamic, max_refills=refills)
    rollouts = SimpleNamespace(prompts_per_step=size, group_size=2)
    engine: Any = Engine(before)
    config: Any = SimpleNamespace(algorithm=algorithm, rollout=rollouts, seed=0, all_rewards=())
    scorer: Any = Scorer(dull)
    settings: Any = SimpleNamespace(name=ALL, group_size=2)
    domain = Domain(settings, Sampling(4), Filter(dynamic, None, None))
    feeds = DomainFeeds([ALL], {ALL: Feed()}, Shares([{0: 1.0}], size))
    domains = Domains({ALL: domain}, feeds, PassRates({}, progress))
    collector = Collector(config, domains, engine, scorer, needs_greedy=greedy)
    supply = SupplyWindow(
        collector, progress, weights(0), engine, max_staleness=staleness, last_step=LAST, window=window, partial=False
    )
    return supply, engine


def numbers(collected: Collected) -> list[int]:
    """Of the prompts of the batch, in the data."""
    return [int(str(group.prompt.text)) for group in collected.groups]


def train(
    supply: SupplyWindow, progress: Progress, steps: int = LAST, batches: list[Collected] | None = None
) -> list[Collected]:
    """The batches of the steps, behind those that are there already."""
    batches = [] if batches is None else batches
    while progress.step < steps:
        step = progress.step + 1
        batches.append(supply.take(step, Stopwatch()))
        supply.publish(weights(step), step)
        progress.advance(batches[-1].positions, {})
    return batches


def test_groups_that_are_finished_in_order_are_taken_in_order() -> None:
    supply, engine = supply_of(lambda _: None, Progress(), window=1)
    with supply:
        batches = train(supply, supply._progress)
    assert [numbers(batch) for batch in batches] == [[2 * n, 2 * n + 1] for n in range(LAST)]
    assert [[g.group_id for g in batch.sampled] for batch in batches] == [[0, 1]] * LAST
    assert [batch.positions for batch in batches] == [{ALL: 2 * n + 2} for n in range(LAST)]
    assert all(batch.metrics["rollout/overtaking_fraction"].result() == 0.0 for batch in batches)
    assert sorted(engine.asked)[:2] == [(1, "p0", (0, 1)), (1, "p1", (0, 1))]
    assert engine.stopped.is_set()
    scorer: Any = supply.collector.scorer
    assert scorer.checked == [2 * SIZE] * LAST, "failed rewards are a share of a step, however its groups arrived"


def test_a_slow_group_is_overtaken_by_fewer_than_the_window() -> None:
    """Group 0 is held back. Two others overtake it in step 1; the third has to wait for it."""
    held = threading.Event()

    def before(number: int) -> None:
        if number == 0:
            assert held.wait(60)

    progress = Progress()
    supply, engine = supply_of(before, progress, window=3, size=1)
    with supply:
        first = train(supply, progress, 1)
        threading.Timer(0.05, held.set).start()
        rest = train(supply, progress, 3)
    assert [numbers(batch) for batch in [*first, *rest]] in ([[1], [2], [0]], [[1], [0], [2]])
    assert first[0].metrics["rollout/overtaking_fraction"].result() == 1.0
    assert engine.version == 3


def test_what_may_overtake() -> None:
    places = OpenPlaces(window=3)
    begun = [places.begin() for _ in range(6)]
    for number in (1, 2, 4):
        places.finish(begun[number])
    assert [place.number if (place := places.take()) else None for _ in range(3)] == [1, 2, None]
    assert (places.count, sorted(places.begun)) == (4, [0, 3, 5])
    places.finish(begun[0])
    assert [place.number if (place := places.take()) else None for _ in range(3)] == [0, 4, None]
    assert (places.oldest, places.overtaken_by) == (3, {4})
    for number, state in ((1, (1, {2, 4})), (4, (1, {2}))):
        places.give_back(begun[number])
        assert (places.oldest, places.overtaken_by) == state


def test_a_place_without_signal_draws_the_next_prompts() -> None:
    places = OpenPlaces(window=1)
    first, second = places.begin(), places.begin()
    places.refill(first)
    places.refill(first)
    assert (first.positions, second.positions, places.begin().positions) == ([0, 2, 3], [1], [4])
    assert (places.asked, places.drawn, places.count) == (3, 5, 3)


@pytest.mark.parametrize("seed", range(20))
def test_any_delays_train_every_group_once_and_within_the_bounds(seed: int) -> None:
    """Also with a checkpoint in the middle, from which another process goes on."""
    dice = random.Random(seed)
    size, staleness, window = dice.randint(1, 4), dice.randint(1, 2), dice.randint(1, 6)
    bound = staleness + -(-(window - 1) // size)
    middle = dice.randint(1, LAST - 1)
    settings: dict[str, Any] = {"window": window, "staleness": staleness, "size": size}

    def before(_: int) -> None:
        time.sleep(random.Random(dice.random()).choice((0, 0, 0.002, 0.01)))

    progress = Progress()
    supply, _ = supply_of(before, progress, greedy=seed % 4 == 0, **settings)
    with supply:
        batches = train(supply, progress, middle)
        state = json.loads(json.dumps(supply.state_dict()))
    later = Progress(step=middle, position=progress.position)
    again, engine = supply_of(before, later, greedy=seed % 4 == 0, **settings)
    engine.version = middle
    with again:
        again.load_state_dict(state)
        assert again.lines() == ()
        again.publish(weights(middle), middle)
        batches += train(again, later)
    taken = [n for batch in batches for n in numbers(batch)]
    assert sorted(taken) == list(range(size * LAST))
    for place, number in enumerate(taken):
        step = place // size + 1
        before_it = {n for n in taken[: (step - 1) * size] if n > number}
        assert len(before_it) < window
    for step, batch in enumerate(batches, start=1):
        versions = {r.policy_version for group in batch.sampled for r in group.rollouts}
        assert step - 1 - min(versions) <= bound
        assert max(versions) <= step - 1
        assert len(batch.sampled) == size
        assert all((group.greedy is not None) == (seed % 4 == 0) for group in batch.sampled)


def test_a_prompt_that_comes_twice_in_a_step_has_other_samples() -> None:
    supply, engine = supply_of(lambda _: None, Progress(), window=1, size=6)
    with supply:
        supply.take(1, Stopwatch())
    assert [indices for step, prompt, indices in engine.asked if (step, prompt) == (1, "p0")] == [(0, 1), (2, 3)]


def test_a_group_that_cannot_be_sampled_ends_the_step_that_needs_it_and_is_begun_again_on_resuming() -> None:
    """Group 5 fails. Step 3 has taken group 4 by then, which is not lost."""

    def before(number: int) -> None:
        if number == 5:
            raise RolloutError("no more", remedy="stop asking")

    progress = Progress()
    supply, _ = supply_of(before, progress, window=1)
    with supply:
        with pytest.raises(RolloutError, match="no more"):
            train(supply, progress)
        state = json.loads(json.dumps(supply.state_dict()))
    assert (progress.step, progress.position) == (2, 4)
    later = Progress(step=2, position=4)
    again, engine = supply_of(lambda _: None, later, window=1)
    engine.version = 2
    with again:
        again.load_state_dict(state)
        (line,) = again.lines()
        assert line == "cluster.window: groups that were begun and not finished (1) get the weights of step 2"
        again.publish(weights(2), 2)
        batches = train(again, later)
    assert [n for batch in batches for n in numbers(batch)] == list(range(4, 2 * LAST))
    assert [(step, prompt) for step, prompt, _ in engine.asked if step == 3] == [(3, "p0")]


def test_an_evaluation_waits_for_all_that_is_being_sampled() -> None:
    progress, done = Progress(), []
    supply, _ = supply_of(done.append, progress, window=2)
    with supply:
        train(supply, progress, 1)
        with supply.evaluating():
            assert sorted(done) == list(range(6))


def test_what_was_counted_before_an_evaluation_is_in_the_next_batch() -> None:
    supply, _ = supply_of(lambda _: None, progress := Progress(), window=2)
    scorer: Any = supply.collector.scorer
    counted = [1.0]
    scorer.take_metrics = lambda: {"judge/requests": Metric(Reduction.SUM, counted.pop())} if counted else {}
    with supply:
        (batch,) = train(supply, progress, 1)
        assert batch.metrics["judge/requests"].result() == 1.0
        counted.append(5.0)
        with supply.evaluating():
            assert counted == []
            counted.append(7.0)  # of the evaluation, which takes it
            scorer.take_metrics()
        second = supply.take(2, Stopwatch())
        assert second.metrics["judge/requests"].result() == 5.0
        assert second.metrics["time/reward_seconds"].result() is not None


def test_the_groups_of_a_step_that_is_not_finished_are_in_its_checkpoint() -> None:
    """Training on step 3 fails: its batch is that of the resumed run's step 3."""
    progress = Progress()
    supply, _ = supply_of(lambda _: None, progress, window=1)
    with supply:
        train(supply, progress, 2)
        lost = supply.take(3, Stopwatch())
        state = json.loads(json.dumps(supply.state_dict()))
    later = Progress(step=2, position=4)
    again, engine = supply_of(lambda _: None, later, window=1)
    engine.version = 2
    with again:
        again.load_state_dict(state)
        again.publish(weights(2), 2)
        batches = train(again, later)
    assert batches[0].groups == lost.groups
    assert [n for batch in batches for n in numbers(batch)] == list(range(4, 2 * LAST))


def drawn(collected: Collected) -> list[int]:
    """Everything that was sampled for the batch, by the number of its prompt in the data."""
    return [int(str(group.prompt.text)) for group in collected.sampled]


def test_groups_without_signal_are_replaced_as_often_as_in_the_exact_supply() -> None:
    """Four places, two refills. Prompts 0 and 1 are dull, and so are those that replace them, which come after the
    eight of the two steps that are begun at once. So two places are left without a group."""
    dull = {0, 1, 8, 9, 10, 11}
    supply, engine = supply_of(lambda _: None, Progress(), window=1, size=4, refills=2, dull=dull.__contains__)
    with supply:
        batch = supply.take(1, Stopwatch())
    assert sorted(drawn(batch)) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert numbers(batch) == [2, 3]
    assert [group.group_id for group in batch.sampled] == list(range(8))
    metrics = {name: metric.result() for name, metric in batch.metrics.items()}
    assert (metrics["groups/sampled"], metrics["groups/missing"], metrics["groups/constant_fraction"]) == (8, 2, 0.75)
    assert (metrics["rollout/overtaking_fraction"], batch.positions) == (0.0, {ALL: 8})
    assert [step for step, _, _ in engine.asked].count(3) == 4, "noise is that of the prompt's part of the data"


@pytest.mark.parametrize("seed", range(20))
def test_any_delays_and_any_dull_prompts_use_every_prompt_once_and_within_the_bounds(seed: int) -> None:
    """Also with a failure in the middle, after which another process goes on from the checkpoint."""
    dice = random.Random(seed)
    size, staleness, window, refills = dice.randint(1, 4), dice.randint(1, 2), dice.randint(1, 6), dice.randint(0, 3)
    bound = staleness + -(-(window - 1) // size)
    failing = dice.randint(0, size * LAST - 1)
    settings: dict[str, Any] = {"window": window, "staleness": staleness, "size": size, "refills": refills}

    def dull(number: int) -> bool:
        return random.Random(1000 * seed + number).random() < 0.5

    def before(number: int) -> None:
        time.sleep(random.Random(dice.random()).choice((0, 0, 0.002, 0.01)))
        if number == failing and not failed:
            failed.append(number)
            raise RolloutError("no more", remedy="stop asking")

    failed: list[int] = []
    batches: list[Collected] = []
    progress = Progress()
    supply, _ = supply_of(before, progress, dull=dull, **settings)
    with supply:
        with pytest.raises(RolloutError, match="no more"):
            train(supply, progress, batches=batches)
        state = json.loads(json.dumps(supply.state_dict()))
    later = Progress(step=progress.step, position=progress.position)
    again, engine = supply_of(before, later, dull=dull, **settings)
    engine.version = later.step
    with again:
        again.load_state_dict(state)
        again.publish(weights(later.step), later.step)
        train(again, later, batches=batches)
    everything = [number for batch in batches for number in drawn(batch)]
    assert sorted(everything) == list(range(later.position))
    for step, batch in enumerate(batches, start=1):
        assert [dull(number) for number in numbers(batch)] == [False] * len(batch.groups)
        assert size <= len(batch.sampled) <= size * (1 + refills)
        missing = batch.metrics["groups/missing"].result()
        assert len(batch.groups) == size - missing
        # Each missing place has drawn as often as it may, and each other one once more than it has drawn in vain.
        assert len(batch.sampled) >= size + missing * refills
        versions = {r.policy_version for group in batch.sampled for r in group.rollouts}
        assert step - 1 - min(versions) <= bound
        assert max(versions) <= step - 1
