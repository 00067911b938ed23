"""Batches of the groups that are finished first (`cluster.window`): a slow group does not hold up its step.

Places in batches are opened in order, those of several steps at once, and each draws the next prompt of the data for
its group. A step takes the oldest places whose groups are finished, and may pass over an older one that is not, as long
as fewer than `window` places overtake it. Which groups a step has depends on how fast everything is; that each is
trained on exactly once does not.

With dynamic sampling, a place whose group is without signal draws another prompt at once, up to `max_refills` times.
That is the rule of `Collector.collect`, whose rounds refill each place of a step as often. What a place has drawn in
vain counts for the step that takes the place, even if no group with a signal was found for it.

With P places a step, at most (max_staleness + 1) P of them are open when weights are published. A place that is opened
with the weights after step u is therefore trained on in step u + 1 + max_staleness + ceil((window - 1) / P) at the
latest, so its groups lag by at most max_staleness + ceil((window - 1) / P) steps.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from burnish.config.domains import ALL
from burnish.data.feeds import EncodedPrompt
from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore, mean
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector, penalised, why_left_out
from burnish.trainers.rl.domains import Domain
from burnish.trainers.rl.open_places import OpenPlaces, Place
from burnish.trainers.rl.stored_batches import group_from_text
from burnish.trainers.rl.supply import Supply
from burnish.trainers.rl.supply_partial import RenewableEngine
from burnish.trainers.telemetry.groups import describe_audits, describe_groups, describe_penalties
from burnish.trainers.telemetry.staleness import describe_renewal, describe_staleness
from burnish.trainers.telemetry.stopwatch import Stopwatch
from burnish.types import Metric, Prompt, Reduction, Rollout, RolloutGroup, RolloutRequest

_LOOK_SECONDS = 1.0
_END_SECONDS = 10.0


class SupplyWindow(Supply):
    """Batches of the groups that are finished first. Used as a context manager, which ends what is being sampled.

    Prompts that are drawn together are sampled by a call of the engine, in a thread of its own. The loop's thread
    starts one for each `prompts_per_step` places when weights are published, and such a thread may start others for
    places that it has to refill. So nothing is sampled once all have ended.
    """

    def __init__(
        self,
        collector: Collector,
        progress: Progress,
        beginning: Weights,
        engine: RenewableEngine,
        *,
        max_staleness: int,
        last_step: int,
        window: int,
        partial: bool,
    ) -> None:
        """See `SupplyAside`. `engine` is the collector's; `generate` is called from several threads at once."""
        kept = engine.keep(beginning)
        super().__init__(collector, progress, kept, max_staleness=max_staleness, last_step=last_step)
        self._aside = engine
        self._partial = partial
        self._steps = {kept.version: 0}
        self._size = collector.config.rollout.prompts_per_step
        self._bound = max_staleness + -(-(window - 1) // self._size)
        """Most steps that a token can lag."""
        algorithm = collector.config.algorithm
        self._refills = algorithm.max_refills if algorithm.dynamic_sampling else 0
        """How often a place may draw another prompt."""
        self._places = OpenPlaces(window)
        self._again: list[Place] = []
        """Places that an earlier process had opened, and whose newest groups did not come to their end."""
        self._arrived: dict[int, list[Rollout]] = {}
        """Responses of groups that are not complete yet, by place."""
        self._changed = threading.Condition()
        """Around `_places`, `_arrived`, `_failure`, `_threads`, `_ended` and the feed."""
        self._scoring = threading.Lock()
        self._spent = MetricStore()
        self._failure: BaseException | None = None
        self._taken: tuple[int, list[Place]] = (0, [])
        """The newest step that has asked for places, and those that it got."""
        self._threads: list[threading.Thread] = []
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End what is being sampled: every checkpoint says which groups are missing."""
        with self._changed:
            self._ended = True
        self._aside.stop()
        end = time.monotonic() + _END_SECONDS
        for thread in self._at_work():
            thread.join(max(end - time.monotonic(), 0.0))

    def publish(self, weights: Weights, step: int) -> None:
        """What is begun from now on is sampled with these weights; with `partial`, what has been begun, too."""
        kept = self._aside.keep(weights)
        with self._changed:
            self._steps = {v: s for v, s in self._steps.items() if s >= step - self._bound - 1} | {kept.version: step}
        self._newest = kept, step
        if self._partial:
            self._aside.renew(kept)
        else:
            self._aside.sync(kept)
        self._ask()

    def take(self, step: int, stopwatch: Stopwatch) -> Collected:
        """See `Supply`: the groups that are finished first."""
        self._ask()
        places: list[Place] = []
        self._taken = step, places
        with stopwatch.phase("wait"):
            while len(places) < self._size:
                places.append(self._next_place(step))
        return self._as_batch(sorted(places, key=lambda place: place.number), step)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Supply`. Waits until everything that is being sampled is done, and takes its counts before the
        evaluation begins its own."""
        self._settle()
        self._take_spent()
        yield

    def _take_spent(self) -> None:
        with self._scoring:
            self._spent.merge(self.collector.scorer.take_metrics())
            self._spent.merge(self.collector.engine.take_metrics())

    def state_dict(self) -> dict[str, object]:
        """The groups that have been sampled and not trained on, and which others were asked for. Waits for those that
        are being sampled, because the weights that sample them are in no checkpoint."""
        self._settle()
        with self._changed:
            self._keep_unfinished()
            places = self._places
            return {
                "asked": places.asked,
                "drawn": places.drawn,
                "oldest": places.oldest,
                "overtaken_by": sorted(places.overtaken_by),
                "steps_of_versions": {str(version): step for version, step in self._steps.items()},
                "begun": {str(n): place.to_state() for n, place in sorted(places.begun.items())},
                "finished": {str(n): place.to_state() for n, place in sorted(places.finished.items())},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Supply`."""
        places = self._places
        places.asked, places.drawn, places.oldest = state["asked"], state["drawn"], state["oldest"]
        places.overtaken_by = set(state["overtaken_by"])
        places.begun = {int(n): self._from_state(int(n), place) for n, place in state["begun"].items()}
        places.finished = {int(n): self._from_state(int(n), place) for n, place in state["finished"].items()}
        self._steps |= {int(version): step for version, step in state["steps_of_versions"].items()}
        self._again = list(places.begun.values())

    def lines(self) -> tuple[str, ...]:
        """See `Supply`."""
        if not self._again:
            return ()
        again, now = len(self._again), self._progress.step
        return (f"cluster.window: groups that were begun and not finished ({again}) get the weights of step {now}",)

    def _from_state(self, number: int, state: Mapping[str, Any]) -> Place:
        """What `Place.to_state` was given."""
        stored = zip(state["positions"], state["groups"], strict=False)  # the newest prompt may have none
        groups = [group_from_text(text, self._prompt(position), number) for position, text in stored]
        return Place(number, state["positions"], groups)

    def _keep_unfinished(self) -> None:
        """Give back what was taken for a step that did not come to its end: a checkpoint must not lack it."""
        step, places = self._taken
        if step > self._progress.step:
            for place in places:
                self._places.give_back(place)
            places.clear()

    def _at_work(self) -> list[threading.Thread]:
        """The threads that sample. Once there are none, only the loop's thread could start others."""
        with self._changed:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            return list(self._threads)

    def _settle(self) -> None:
        """Wait until nothing is being sampled. The engine and the rewards have deadlines of their own."""
        while threads := self._at_work():
            for thread in threads:
                thread.join(_LOOK_SECONDS)

    def _ask(self) -> None:
        """Begin what the newest weights have to sample."""
        again, self._again = self._again, []
        with self._changed:
            self._begin(again)
            open_limit, total = self._size * self._max_staleness, self._size * self._last_step
            while self._places.count <= open_limit and self._places.asked < total:
                self._begin([self._places.begin() for _ in range(self._size)])

    def _begin(self, places: Sequence[Place]) -> None:
        """Sample the newest prompts of these places, those of each `prompts_per_step` of the data in a thread of their
        own: noise depends on which of these a prompt is in."""
        for block in sorted({place.positions[-1] // self._size for place in places}):
            ours = [place for place in places if place.positions[-1] // self._size == block]
            name = f"places {ours[0].number} to {ours[-1].number}"
            thread = threading.Thread(target=self._sample, args=(ours,), name=name, daemon=True)
            with self._changed:
                self._threads.append(thread)
                thread.start()

    def _sample(self, places: Sequence[Place]) -> None:
        """A thread: sample and score the newest prompts of these places, which are neighbours in the data."""
        try:
            requests = self._requests(places)
            step, arrive = 1 + places[0].positions[-1] // self._size, self._arrival(places)
            self.collector.generate(requests, self._domain.sampling, step, arrive)
            if self.collector.needs_greedy:
                self.collector.greedy(requests, self._domain.sampling, step, arrive)
        except BaseException as error:  # noqa: BLE001  boundary: raised again in the thread that waits
            with self._changed:
                self._failure = self._failure or error
        with self._changed:
            self._changed.notify_all()

    def _requests(self, places: Sequence[Place]) -> list[RolloutRequest]:
        """What the engine is asked for. Groups have the numbers of their places as ids."""
        first = places[0].positions[-1] // self._size * self._size
        numbers = {place.positions[-1]: place.number for place in places}
        requests, asked = [], Counter[str]()
        for position, encoded in enumerate(self._from_data(self._size, first), start=first):
            prompt_id, size = encoded.prompt.id, self._domain.settings.group_size
            indices = tuple(range(asked[prompt_id], asked[prompt_id] + size))  # see `Collector`
            asked[prompt_id] += size
            if position in numbers:
                requests.append(RolloutRequest(prompt_id, numbers[position], encoded.tokens, indices))
        return requests

    def _arrival(self, places: Sequence[Place]) -> Callable[[Sequence[Rollout]], None]:
        """Takes finished responses; scores those of complete groups. Then their places are finished, or refilled."""
        size = self._domain.settings.group_size + self.collector.needs_greedy
        by_number = {place.number: place for place in places}
        prompts = {place.number: self._prompt(place.positions[-1]) for place in places}

        def arrive(rollouts: Sequence[Rollout]) -> None:
            with self._changed:
                for rollout in rollouts:
                    self._arrived.setdefault(rollout.group_id, []).append(rollout)
                complete = sorted({r.group_id for r in rollouts if len(self._arrived[r.group_id]) == size})
                members = [(prompts[n], rollout) for n in complete for rollout in self._arrived.pop(n)]
            with self._scoring:
                started = time.monotonic()
                scored = self.collector.scorer.score(members, checks=False)  # failures are counted for each step
                self._spent.add("time/reward_seconds", Metric(Reduction.SUM, time.monotonic() - started))
            self._finish_or_refill(
                [by_number[n] for n in complete],
                [_group(prompts[n], [r for r in scored if r.group_id == n]) for n in complete],
            )

        return arrive

    def _finish_or_refill(self, places: Sequence[Place], groups: Sequence[RolloutGroup]) -> None:
        """Finish these places with their newest groups, and draw other prompts for those that may and need to."""
        with self._changed:
            refilled = []
            for place, group in zip(places, groups, strict=True):
                place.groups.append(group)
                if self._teaches(group) or len(place.groups) > self._refills:
                    self._places.finish(place)
                else:
                    self._places.refill(place)
                    refilled.append(place)
            if not self._ended:
                self._begin(refilled)
            self._changed.notify_all()

    def _next_place(self, step: int) -> Place:
        """The next place of a batch, once there is one that it may have. Raises what has kept it from being sampled."""
        with self._changed:
            while (place := self._places.take()) is None:
                if not self._at_work():
                    raise self._failure or RolloutError(
                        f"all threads that sample have ended before the batch of step {step} was complete",
                        remedy="start the run again: it continues from its newest checkpoint; please report this",
                    )
                self._changed.wait(_LOOK_SECONDS)
        return place

    def _as_batch(self, places: Sequence[Place], step: int) -> Collected:
        """The groups of these places as the batch of the step, as `Collector.collect` would give it."""
        collector, config = self.collector, self.collector.config
        sampled = [group for place in places for group in place.groups]
        items = [(g.prompt, r) for g in sampled for r in (*g.rollouts, *([] if g.greedy is None else [g.greedy]))]
        collector.scorer.check_failures(items, [rollout for _, rollout in items])
        overtook = mean(sum(place.number > self._places.oldest for place in places), len(places))
        sampled = [_numbered(group, number) for number, group in enumerate(sampled)]
        kept = [group for group in sampled if self._teaches(group)]
        missing = len(places) - len(kept)
        metrics = describe_groups(sampled, missing=missing, fixed_length=self._domain.sampling.ignore_eos)
        metrics |= describe_audits(sampled, [reward.log_label for reward in config.all_rewards if reward.audit])
        if config.algorithm.overlong_buffer is not None:
            kept = [penalised(group, config.algorithm.overlong_buffer, collector.domains) for group in kept]
            metrics |= describe_penalties(kept)
        metrics |= describe_staleness(sampled, self._steps, step)
        metrics |= {"rollout/overtaking_fraction": overtook}
        metrics |= describe_renewal(sampled) if self._partial else {}
        self._take_spent()
        with self._scoring:
            self._spent.merge(metrics)
            spent, self._spent = self._spent, MetricStore()
        positions = {ALL: self._progress.position + len(sampled)}
        return Collected(tuple(kept), tuple(sampled), positions, spent.merged())

    @property
    def _domain(self) -> Domain:
        """The only one: with a window, shares could not be exact."""
        return self.collector.domains.only

    def _teaches(self, group: RolloutGroup) -> bool:
        collector = self.collector
        return not why_left_out(group, self._progress.step, collector.domains, collector.needs_greedy)

    def _prompt(self, position: int) -> Prompt:
        return self._from_data(1, position)[0].prompt

    def _from_data(self, count: int, position: int) -> list[EncodedPrompt]:
        with self._changed:  # samplers remember where they are, so two threads must not ask at once
            return [self.collector.domains.feeds.at(ALL, place).encoded for place in range(position, position + count)]


def _group(prompt: Prompt, rollouts: Sequence[Rollout]) -> RolloutGroup:
    """The responses to one prompt, in the order of their indices. The greedy one has a negative index."""
    ordered = sorted(rollouts, key=lambda rollout: rollout.sample_index)
    samples = tuple(rollout for rollout in ordered if rollout.sample_index >= 0)
    greedy = next((rollout for rollout in ordered if rollout.sample_index < 0), None)
    return RolloutGroup(prompt, rollouts[0].group_id, samples, greedy)


def _numbered(group: RolloutGroup, number: int) -> RolloutGroup:
    """The group with the id that it has in its batch."""
    rollouts = tuple(replace(rollout, group_id=number) for rollout in group.rollouts)
    greedy = None if group.greedy is None else replace(group.greedy, group_id=number)
    return RolloutGroup(group.prompt, number, rollouts, greedy)
