"""Which weights sample which batch, from a collector that only notes what it is asked."""

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from plain_samples import Feed

from burnish.config.domains import ALL
from burnish.data.feeds import Drawn
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import Stopwatch
from burnish.rollouts.outages import Patience
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.supply import Supply, SupplyAhead, from_text, to_text
from burnish.trainers.rl.supply.threaded import SupplyAside, SupplyPartial
from burnish.types import FinishReason, Metric, Reduction, RewardStatus, Rollout, RolloutGroup

LAST = 6


class Engine:
    """Knows the version of its weights. `keep` copies nothing: the fake weights never change."""

    def __init__(self) -> None:
        self.version = 0
        self.synced: list[int] = []
        self.stopped = False
        self.renewed = threading.Event()

    def renew(self, weights: Weights) -> None:
        self.sync(weights)
        self.renewed.set()

    def sync(self, weights: Weights) -> None:
        self.version = weights.version
        self.synced.append(weights.version)

    def keep(self, weights: Weights) -> Weights:
        return dataclasses.replace(weights)

    def stop(self) -> None:
        self.stopped = True


class FakeCollector:
    """Batches of two groups; `asked` are (step, position, version)."""

    def __init__(self, lag: int = 0, staleness: int = 0) -> None:
        self.engine = Engine()
        self.patience = Patience()
        self.feed = Feed(100)
        self.domains = SimpleNamespace(feeds=SimpleNamespace(at=self.drawn), observe=lambda step, groups: None)
        algorithm = SimpleNamespace(overlong_buffer=None)
        self.config = SimpleNamespace(algorithm=algorithm, steps=LAST, max_staleness=staleness)
        self.asked: list[tuple[int, int, int]] = []
        self.lag = lag

    def drawn(self, domain: str, place: int) -> Drawn:
        return Drawn(domain, place, self.feed.take(1, place)[0])

    def collect(self, step: int, positions: Mapping[str, int], stopwatch: Stopwatch) -> Collected:
        position = positions.get(ALL, 0)
        self.asked.append((step, position, self.engine.version))
        groups = tuple(
            RolloutGroup(e.prompt, n, (rollout(e.prompt.id, n, self.engine.version - self.lag),))
            for n, e in enumerate(self.feed.take(2, position))
        )
        metrics = {"reward/mean": Metric(Reduction.MEAN, 0.1 + 0.2, 1.0)}
        return Collected(groups, groups, {ALL: position + 2}, metrics, ((ALL, position), (ALL, position + 1)))


def rollout(prompt_id: str, group: int, version: int) -> Rollout:
    return Rollout(prompt_id, group, 0, (1,), (2, 3), (-0.1, -1 / 3), FinishReason.STOP, version, "text", 0.1,
                   {"part": 1e-300}, (0.0, 0.1), RewardStatus.OK)  # fmt: skip


def weights(version: int) -> Weights:
    return Weights(version, lambda: iter(()))


def train(supply: Supply, progress: Progress, steps: int = LAST) -> None:
    """Steps of a loop whose policy makes one optimizer step in each."""
    while progress.step < steps:
        step = progress.step + 1
        collected = supply.take(step, Stopwatch())
        supply.publish(weights(step), step)
        progress.advance(collected.positions, {})


@pytest.fixture(params=["inline", "aside"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def supply_of(kind: str, collector: Any, progress: Progress) -> Any:
    if kind == "inline":
        ahead = SupplyAhead if collector.config.max_staleness else Supply
        return ahead(collector, progress, weights(0))
    aside = SupplyPartial if kind == "partial" else SupplyAside
    return aside(collector, progress, weights(0), collector.engine)


@pytest.mark.parametrize("staleness", [0, 1, 2, 9])
def test_the_batch_of_a_step_has_the_weights_of_the_rule(kind: str, staleness: int) -> None:
    collector, progress = FakeCollector(staleness=staleness), Progress()
    train(supply_of(kind, collector, progress), progress)
    assert collector.asked == [(s, 2 * (s - 1), max(0, s - 1 - staleness)) for s in range(1, LAST + 1)]


@pytest.mark.parametrize("kind", ["inline", "aside", "partial"])
def test_an_engine_with_other_weights_is_refused(kind: str) -> None:
    collector, progress = FakeCollector(lag=1, staleness=1), Progress()
    with pytest.raises(RolloutError, match="sampled with version -1 of the policy instead of version 0"):
        train(supply_of(kind, collector, progress), progress)


def test_an_evaluation_has_the_newest_weights_and_the_next_batch_its_own(kind: str) -> None:
    collector, progress = FakeCollector(staleness=2), Progress()
    supply = supply_of(kind, collector, progress)
    train(supply, progress, 2)
    with supply.evaluating():
        assert collector.engine.version == 2
    train(supply, progress)
    assert [version for _, _, version in collector.asked] == [0, 0, 0, 1, 2, 3]


def test_the_same_weights_are_not_handed_over_twice() -> None:
    collector, progress = FakeCollector(), Progress()
    supply = supply_of("inline", collector, progress)
    for _ in range(2):
        train(supply, progress, progress.step + 1)
        with supply.evaluating():
            pass
    train(supply, progress, 3)
    assert collector.engine.synced == [1, 2]


def test_a_checkpoint_has_what_is_sampled_and_a_run_goes_on_with_it(kind: str) -> None:
    collector, progress = FakeCollector(staleness=2), Progress()
    supply = supply_of(kind, collector, progress)
    train(supply, progress, 2)
    state = supply.state_dict()
    assert list(state) == ["3", "4"]
    later, resumed = FakeCollector(staleness=2), Progress(step=2, position=4, positions={ALL: 4})
    again = supply_of(kind, later, resumed)
    again.load_state_dict(state)
    again.publish(weights(2), 2)
    assert again.lines() == ()
    train(again, resumed)
    assert later.asked == [(5, 8, 2), (6, 10, 3)]


@pytest.mark.parametrize(("staleness", "steps"), [(0, None), (2, "3 to 4")])
def test_missing_batches_of_a_checkpoint_are_told(staleness: int, steps: str | None) -> None:
    """Checkpoints of a run that samples nothing ahead hold none, so that `load_state_dict` is never called."""
    progress = Progress(step=2, position=4, positions={ALL: 4})
    supply = supply_of("inline", FakeCollector(staleness=staleness), progress)
    if steps:
        supply.load_state_dict({})
    told = f"max_staleness: the checkpoint has no batch of steps {steps}; the weights of step 2 sample instead"
    assert supply.lines() == ((told,) if steps else ())


def test_what_fails_ahead_is_raised_by_the_step_that_needs_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    collector, progress = FakeCollector(staleness=1), Progress()
    collect = collector.collect

    def failing(step: int, positions: Mapping[str, int], stopwatch: Stopwatch) -> Collected:
        if step == 5:
            raise RolloutError("no more", remedy="stop asking")
        return collect(step, positions, stopwatch)

    monkeypatch.setattr(collector, "collect", failing)
    supply = supply_of(kind, collector, progress)
    with pytest.raises(RolloutError, match="no more"):
        train(supply, progress)
    assert progress.step == 4
    assert supply.state_dict() == {}


def test_leaving_stops_the_engine_and_the_thread() -> None:
    collector, progress = FakeCollector(staleness=1), Progress()
    supply = supply_of("aside", collector, progress)
    with supply:
        train(supply, progress, 2)
    assert collector.engine.stopped
    assert not any(thread.name == "sampling ahead" and thread is supply._thread for thread in threading.enumerate())


def test_a_stored_batch_is_the_same_to_the_last_bit() -> None:
    collector: Any = FakeCollector()
    batch = collector.collect(1, {ALL: 6}, Stopwatch())
    batch.metrics["rollout/tokens"] = Metric(Reduction.SUM, 1 / 3).merge(Metric(Reduction.SUM, 1e-17))
    read = from_text(to_text(batch), collector)
    assert (read.groups, read.sampled, read.positions) == (batch.groups, batch.sampled, {ALL: 8})
    assert {n: m.result() for n, m in read.metrics.items()} == {n: m.result() for n, m in batch.metrics.items()}


class MixingCollector(FakeCollector):
    """From the second step on a batch waits for new weights in the middle: its responses have two tokens of the weights
    that it began with, and two of the newest that there can be."""

    def __init__(self) -> None:
        super().__init__(staleness=1)
        self.begun = defaultdict[int, threading.Event](threading.Event)

    def collect(self, step: int, positions: Mapping[str, int], stopwatch: Stopwatch) -> Collected:
        begun_with = self.engine.version
        self.begun[step].set()
        while step > 1 and self.engine.version < step - 1:
            assert self.engine.renewed.wait(60)
            self.engine.renewed.clear()
        collected = super().collect(step, positions, stopwatch)
        versions = ((0, begun_with), (2, self.engine.version)) if step > 1 else ()
        tokens = {"response_tokens": (2, 3, 4, 5), "rollout_logprobs": (-0.1, -1 / 3, -0.2, -0.3)}
        groups = []
        for group in collected.sampled:
            mixed = [
                dataclasses.replace(r, **tokens, policy_version=begun_with, versions=versions) for r in group.rollouts
            ]
            groups.append(dataclasses.replace(group, rollouts=tuple(mixed)))
        return dataclasses.replace(collected, groups=tuple(groups), sampled=tuple(groups))


def train_slowly(supply: Supply, collector: MixingCollector, progress: Progress, steps: int) -> list[Collected]:
    """Steps of a loop that publishes only once the next batch has been begun."""
    batches = []
    while progress.step < steps:
        step = progress.step + 1
        batches.append(supply.take(step, Stopwatch()))
        assert step == LAST or collector.begun[step + 1].wait(60)
        supply.publish(weights(step), step)
        progress.advance(batches[-1].positions, {})
    return batches


def test_partial_batches_go_on_with_the_newest_weights_and_say_how_old_each_token_is() -> None:
    """With one batch ahead, half of a batch's tokens lag by one step, and half by none."""
    collector, progress = MixingCollector(), Progress()
    with supply_of("partial", collector, progress) as supply:
        batches = train_slowly(supply, collector, progress, LAST)
    names = ("rollout/staleness", "rollout/renewed_fraction")
    lags = [tuple(batch.metrics[name].result() for name in names) for batch in batches]
    assert lags == [(0.0, 0.0)] + [(0.5, 1.0)] * (LAST - 1)


@pytest.mark.slow
def test_a_partial_batch_of_a_checkpoint_keeps_the_versions_of_its_tokens() -> None:
    collector, progress = MixingCollector(), Progress()
    with supply_of("partial", collector, progress) as supply:
        train_slowly(supply, collector, progress, 2)
        state = supply.state_dict()
    assert list(state) == ["3"]
    later, resumed = MixingCollector(), Progress(step=2, position=4, positions={ALL: 4})
    with supply_of("partial", later, resumed) as again:
        again.load_state_dict(state)
        again.publish(weights(2), 2)
        collected = again.take(3, Stopwatch())
    assert {r.versions for group in collected.groups for r in group.rollouts} == {((0, 1), (2, 2))}
    assert collected.metrics["rollout/staleness"].result() == 0.5
