"""Batches of the groups that are finished first (`cluster.window`): a slow group does not hold up its step.

Groups are asked for in the order of their prompts, those of several steps at once. A step takes the oldest ones that
are finished, and may pass over an older one that is not, as long as fewer than `window` groups overtake it. Which
groups a step has depends on how fast everything is; that each is trained on exactly once does not.

With P groups a step, at most (max_staleness + 1) P of them are open when weights are published. A group that is begun
with the weights after step u is therefore trained on in step u + 1 + max_staleness + ceil((window - 1) / P) at the
latest, so it lags by at most max_staleness + ceil((window - 1) / P) steps.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from burnish.errors import RolloutError
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore, mean
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.stored_batches import group_from_text, group_to_text
from burnish.trainers.rl.supply import Supply
from burnish.trainers.rl.supply_partial import RenewableEngine
from burnish.trainers.telemetry.groups import describe_groups, describe_penalties
from burnish.trainers.telemetry.staleness import describe_renewal, describe_staleness
from burnish.trainers.telemetry.stopwatch import Stopwatch
from burnish.types import Prompt, Rollout, RolloutGroup, RolloutRequest

_LOOK_SECONDS = 1.0
_END_SECONDS = 10.0


@dataclass(slots=True)
class OpenGroups:
    """Groups on their way from the data to a step, by the number of their prompt in the data, and which of them the
    next step may have."""

    window: int
    asked: int = 0
    """All numbers below were asked for."""
    oldest: int = 0
    """All numbers below were taken."""
    overtaken_by: set[int] = field(default_factory=set)
    """Numbers above `oldest` that were taken."""
    finished: dict[int, RolloutGroup] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many were asked for and not taken."""
        return self.asked - self.oldest - len(self.overtaken_by)

    def take(self) -> RolloutGroup | None:
        """The oldest finished group, unless as many have overtaken an older one as may."""
        number = min(self.finished, default=None)
        if number is None or (number > self.oldest and len(self.overtaken_by) >= self.window - 1):
            return None
        self.overtaken_by.add(number)
        while self.oldest in self.overtaken_by:
            self.overtaken_by.remove(self.oldest)
            self.oldest += 1
        return self.finished.pop(number)

    def give_back(self, group: RolloutGroup) -> None:
        """Undo `take`."""
        number = group.group_id
        if number < self.oldest:
            self.overtaken_by.update(range(number + 1, self.oldest))
            self.oldest = number
        else:
            self.overtaken_by.remove(number)
        self.finished[number] = group

    def missing(self) -> list[int]:
        """Those that were asked for and are neither finished nor taken."""
        known = self.overtaken_by | self.finished.keys()
        return [number for number in range(self.oldest, self.asked) if number not in known]


class SupplyWindow(Supply):
    """Batches of the groups that are finished first. Used as a context manager, which ends what is being sampled.

    Each `prompts_per_step` groups are sampled by a call of the engine, in a thread that the loop's thread starts when
    weights are published. Only that one starts any, so it knows that nothing is sampled once all have ended.
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
        self._groups = OpenGroups(window)
        self._again: list[int] = []
        """Groups that an earlier process had asked for, and that did not come to their end."""
        self._arrived: dict[int, list[Rollout]] = {}
        """Responses of groups that are not complete yet."""
        self._changed = threading.Condition()
        """Around `_groups`, `_arrived` and `_failure`."""
        self._scoring = threading.Lock()
        self._failure: BaseException | None = None
        self._taken: tuple[int, list[RolloutGroup]] = (0, [])
        """The newest step that has asked for groups, and those that it got."""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End what is being sampled: every checkpoint says which groups are missing."""
        self._aside.stop()
        end = time.monotonic() + _END_SECONDS
        for thread in self._threads:
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
        groups: list[RolloutGroup] = []
        self._taken = step, groups
        with stopwatch.phase("wait"):
            while len(groups) < self._size:
                groups.append(self._next_group(step))
        return self._as_batch(sorted(groups, key=lambda group: group.group_id), step)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Supply`. Waits until everything that is being sampled is done."""
        self._settle()
        yield

    def state_dict(self) -> dict[str, object]:
        """The groups that have been sampled and not trained on, and which others were asked for. Waits for those that
        are being sampled, because the weights that sample them are in no checkpoint."""
        self._settle()
        with self._changed:
            self._keep_unfinished()
            return {
                "asked": self._groups.asked,
                "oldest": self._groups.oldest,
                "overtaken_by": sorted(self._groups.overtaken_by),
                "steps_of_versions": {str(version): step for version, step in self._steps.items()},
                "groups": {str(n): group_to_text(group) for n, group in sorted(self._groups.finished.items())},
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Supply`."""
        groups = self._groups
        groups.asked, groups.oldest = state["asked"], state["oldest"]
        groups.overtaken_by = set(state["overtaken_by"])
        groups.finished = {
            int(n): group_from_text(text, self._prompt(int(n)), int(n)) for n, text in state["groups"].items()
        }
        self._steps |= {int(version): step for version, step in state["steps_of_versions"].items()}
        self._again = groups.missing()

    def lines(self) -> tuple[str, ...]:
        """See `Supply`."""
        if not self._again:
            return ()
        again, now = len(self._again), self._progress.step
        return (f"cluster.window: groups that were begun and not finished ({again}) get the weights of step {now}",)

    def _keep_unfinished(self) -> None:
        """Give back what was taken for a step that did not come to its end: a checkpoint must not lack it."""
        step, groups = self._taken
        if step > self._progress.step:
            for group in groups:
                self._groups.give_back(group)
            groups.clear()

    def _settle(self) -> None:
        """Wait until nothing is being sampled. The engine and the rewards have deadlines of their own."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
        self._threads.clear()

    def _ask(self) -> None:
        """Begin what the newest weights have to sample."""
        again, self._again = self._again, []
        for number in sorted({n // self._size for n in again}):
            self._begin([n for n in again if n // self._size == number])
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        open_limit = self._size * self._max_staleness
        total = self._size * self._last_step
        while self._groups.count <= open_limit and self._groups.asked < total:
            first = self._groups.asked
            self._groups.asked += self._size
            self._begin(list(range(first, self._groups.asked)))

    def _begin(self, numbers: Sequence[int]) -> None:
        name = f"groups {numbers[0]} to {numbers[-1]}"
        thread = threading.Thread(target=self._sample, args=(numbers,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _sample(self, numbers: Sequence[int]) -> None:
        """A thread: sample and score these groups, all of which belong to the same step by their numbers."""
        try:
            requests, prompts = self._requests(numbers)
            step, arrive = 1 + numbers[0] // self._size, self._arrival(prompts)
            self.collector.generate(requests, self.collector.sampling, step, arrive)
            if self.collector.needs_greedy:
                self.collector.greedy(requests, step, arrive)
        except BaseException as error:  # noqa: BLE001  boundary: raised again in the thread that waits
            with self._changed:
                self._failure = self._failure or error
        with self._changed:
            self._changed.notify_all()

    def _requests(self, numbers: Sequence[int]) -> tuple[list[RolloutRequest], dict[int, Prompt]]:
        """What the engine is asked for, and the prompts by number. Groups have their numbers as ids."""
        first = numbers[0] - numbers[0] % self._size
        requests, prompts, asked = [], {}, Counter[str]()
        for number, encoded in enumerate(self.collector.feed.take(self._size, first), start=first):
            prompt_id, size = encoded.prompt.id, self.collector.config.rollout.group_size
            indices = tuple(range(asked[prompt_id], asked[prompt_id] + size))  # see `Collector`
            asked[prompt_id] += size
            if number in numbers:
                requests.append(RolloutRequest(prompt_id, number, encoded.tokens, indices))
                prompts[number] = encoded.prompt
        return requests, prompts

    def _arrival(self, prompts: Mapping[int, Prompt]) -> Callable[[Sequence[Rollout]], None]:
        """Takes finished responses; scores those of complete groups, which are finished then."""
        size = self.collector.config.rollout.group_size + self.collector.needs_greedy

        def arrive(rollouts: Sequence[Rollout]) -> None:
            with self._changed:
                for rollout in rollouts:
                    self._arrived.setdefault(rollout.group_id, []).append(rollout)
                complete = sorted({r.group_id for r in rollouts if len(self._arrived[r.group_id]) == size})
                members = [(prompts[n], rollout) for n in complete for rollout in self._arrived.pop(n)]
            with self._scoring:
                scored = self.collector.scorer.score(members, checks=False)  # failures are counted for each step
            with self._changed:
                for n in complete:
                    self._groups.finished[n] = _group(prompts[n], [r for r in scored if r.group_id == n])
                self._changed.notify_all()

        return arrive

    def _next_group(self, step: int) -> RolloutGroup:
        """The next group of a batch, once there is one that it may have. Raises what has kept it from being sampled."""
        with self._changed:
            while (group := self._groups.take()) is None:
                if not any(thread.is_alive() for thread in self._threads):
                    raise self._failure or RolloutError(
                        f"all threads that sample have ended before the batch of step {step} was complete",
                        remedy="start the run again: it continues from its newest checkpoint; please report this",
                    )
                self._changed.wait(_LOOK_SECONDS)
        return group

    def _as_batch(self, sampled: Sequence[RolloutGroup], step: int) -> Collected:
        """These groups as the batch of the step, as `Collector.collect` would give it."""
        collector, config = self.collector, self.collector.config
        items = [(g.prompt, r) for g in sampled for r in (*g.rollouts, *([] if g.greedy is None else [g.greedy]))]
        collector.scorer.check_failures(items, [rollout for _, rollout in items])
        overtook = mean(sum(group.group_id > self._groups.oldest for group in sampled), len(sampled))
        sampled = [_numbered(group, number) for number, group in enumerate(sampled)]
        kept = [group for group in sampled if collector.teaches(group)]
        missing = len(sampled) - len(kept)
        metrics = describe_groups(sampled, missing=missing, fixed_length=collector.sampling.ignore_eos)
        if config.algorithm.overlong_buffer is not None:
            kept = [collector.penalised(group, config.algorithm.overlong_buffer) for group in kept]
            metrics |= describe_penalties(kept)
        metrics |= describe_staleness(sampled, self._steps, step)
        metrics |= {"rollout/overtaking_fraction": overtook}
        metrics |= describe_renewal(sampled) if self._partial else {}
        with self._scoring:
            spent = MetricStore.of((metrics, collector.scorer.take_metrics(), collector.engine.take_metrics()))
        return Collected(tuple(kept), tuple(sampled), self._progress.position + len(sampled), spent.merged())

    def _prompt(self, number: int) -> Prompt:
        return self.collector.feed.take(1, number)[0].prompt


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
