"""Batches of the steps, and the weights that sample each: at most `max_staleness` steps ahead of training.

The batch of step s is sampled with the weights after step max(0, s - 1 - max_staleness), whatever is fast or slow, so a
run is a function of its run file with any `max_staleness`. Batches are collected strictly one after another: which
prompts a step draws depends on how many groups the steps before it had to replace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from burnish.data.feeds import Positions
from burnish.errors import BurnishError
from burnish.models.weights import Weights
from burnish.observability.metrics import Stopwatch
from burnish.rollouts.engine import let_rest
from burnish.trainers.outer_loop import Controller, Progress
from burnish.trainers.rl.collection import Collected, Collector, penalised
from burnish.trainers.telemetry.groups import check_versions, describe_staleness
from burnish.types import Metric, Reduction, Rollout, RolloutGroup


class Supply:
    """The batches of the steps. This one is on policy: it samples when a step begins, in the loop's own thread."""

    def __init__(self, collector: Collector, progress: Progress, beginning: Weights) -> None:
        """`beginning`: the weights that the collector's engine has already."""
        self.collector = collector
        self._progress = progress
        self._newest = self._in_engine = beginning

    def publish(self, weights: Weights, step: int) -> None:
        """Sample from now on with these weights, which the policy has after this step."""
        self._newest = weights

    def take(self, step: int, stopwatch: Stopwatch) -> Collected:
        """The batch of the step. Raises what sampling and scoring raise, and RolloutError if the engine has used other
        weights."""
        collected = self._collect(step, self._newest, self._progress.positions, stopwatch)
        check_versions(collected.sampled, {self._newest.version})
        let_rest(self.collector.engine)  # until the policy has trained
        return collected

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """While this lasts, the engine has the newest weights and nothing else to do."""
        self._load(self._newest)
        yield
        let_rest(self.collector.engine)

    def controllers(self) -> Mapping[str, Controller]:
        """Parts that are saved in checkpoints, by name."""
        return {}

    def lines(self) -> tuple[str, ...]:
        """Lines for the user when a run goes on."""
        return ()

    def _load(self, weights: Weights) -> None:
        """Let the engine sample with these weights, unless it does."""
        if weights is not self._in_engine:
            self.collector.engine.sync(weights)
            self._in_engine = weights

    def _collect(self, step: int, weights: Weights, positions: Positions, stopwatch: Stopwatch) -> Collected:
        with stopwatch.phase("sync"):
            self._load(weights)
        attempt = partial(self.collector.collect, step, positions, stopwatch)
        # A failure from the first step on is not an outage.
        return attempt() if step == 1 else self.collector.patience.through(attempt)


class SupplyAhead(Supply):
    """Batches of later steps, too. This one samples them in the loop's own thread when a step begins: nothing overlaps,
    and the numbers are the same as with `burnish.trainers.rl.supply.threaded`."""

    def __init__(self, collector: Collector, progress: Progress, beginning: Weights) -> None:
        """See `Supply`."""
        super().__init__(collector, progress, beginning)
        self._newest_step = 0  # the step after which the policy has had the newest weights
        self._max_staleness, self._last_step = collector.config.max_staleness, collector.config.steps
        self._asked = 0  # the last step whose batch was asked for
        self._collected: dict[int, Collected] = {}  # by step: of the present one and of later ones
        self._failure: BaseException | None = None

    def publish(self, weights: Weights, step: int) -> None:
        """See `Supply`."""
        self._newest, self._newest_step = weights, step

    def take(self, step: int, stopwatch: Stopwatch) -> Collected:
        """See `Supply`. Orders first every batch that the newest weights have to sample. A later step's failure is
        raised when that step begins: the steps before it are trained and saved first."""
        if self._failure is not None and step > self._asked:
            raise self._failure
        self._collected.pop(step - 1, None)
        for due in self._due(step) if self._failure is None else ():
            try:
                self._collected[due] = self._collect_ahead(due, self._newest, self._newest_step, stopwatch)
            except BurnishError as error:
                if due == step:
                    raise
                self._failure = error
                break
            self._asked = due
        let_rest(self.collector.engine)
        return self._collected[step]

    def controllers(self) -> Mapping[str, Controller]:
        """See `Supply`."""
        return {"supply": self}

    def state_dict(self) -> dict[str, object]:
        """The batches of steps that have not been trained on yet, for a checkpoint. Waits for batches in progress,
        because the weights that sample them are in no checkpoint."""
        self._settle()
        later = {number: one for number, one in self._collected.items() if number > self._progress.step}
        return {str(number): to_text(one) for number, one in sorted(later.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the batches of a checkpoint, to which `progress` has been set."""
        self._asked = self._progress.step
        for number, text in state.items():
            self._collected[int(number)] = batch = from_text(text, self.collector)
            self.collector.domains.observe(int(number), batch.sampled)
            self._asked = int(number)

    def lines(self) -> tuple[str, ...]:
        """See `Supply`. Batches that a run did not sample, because it failed or had fewer `steps`, are sampled with
        newer weights than they would have been."""
        first = max(self._asked, self._progress.step) + 1
        end = min(self._progress.step + self._max_staleness, self._last_step) + 1
        if not self._progress.step or first >= end:
            return ()
        steps = f"step {first}" if first + 1 == end else f"steps {first} to {end - 1}"
        now = self._progress.step
        return (f"max_staleness: the checkpoint has no batch of {steps}; the weights of step {now} sample instead",)

    def _due(self, step: int) -> range:
        """The batches that the newest weights sample, as `step` begins."""
        return range(max(step, self._asked + 1), min(step + self._max_staleness, self._last_step) + 1)

    def _settle(self) -> None:
        """Wait for what is being sampled."""

    def _collect_ahead(self, due: int, weights: Weights, weights_step: int, stopwatch: Stopwatch) -> Collected:
        """The batch of the step `due`, sampled with the weights that the policy had after `weights_step`."""
        before = self._collected.get(due - 1, self._progress)
        collected = self._collect(due, weights, before.positions, stopwatch)
        steps = self._steps_of(weights, weights_step)
        collected.metrics.update(describe_staleness(collected.sampled, steps, due))
        return collected

    def _steps_of(self, weights: Weights, weights_step: int) -> Mapping[int, int]:
        """The versions that may have sampled a batch of these weights, and after which step the policy had each."""
        return {weights.version: weights_step}


def to_text(collected: Collected) -> str:
    """The batch as JSON. Floats keep their last bit."""
    return json.dumps(
        {
            "places": collected.places,
            "positions": dict(collected.positions),
            "kept": [group.group_id for group in collected.groups],
            "rollouts": [[rollout.to_dict() for rollout in group.rollouts] for group in collected.sampled],
            "greedy": [None if group.greedy is None else group.greedy.to_dict() for group in collected.sampled],
            "metrics": {name: _plain(metric) for name, metric in collected.metrics.items()},
        }
    )


def from_text(text: str, collector: Collector) -> Collected:
    """Restore a batch from the text of `to_text`. Raises ValueError, KeyError or TypeError for another text."""
    stored: dict[str, Any] = json.loads(text)
    places = tuple((str(name), int(place)) for name, place in stored["places"])
    prompts = [collector.domains.feeds.at(name, place).encoded.prompt for name, place in places]
    members = zip(prompts, stored["rollouts"], stored["greedy"], strict=True)
    sampled = tuple(
        RolloutGroup(
            prompt,
            group_id,
            tuple(Rollout.from_dict(row) for row in rows),
            None if greedy is None else Rollout.from_dict(greedy),
        )
        for group_id, (prompt, rows, greedy) in enumerate(members)
    )
    kept, overlong = [sampled[group_id] for group_id in stored["kept"]], collector.config.algorithm.overlong_buffer
    if overlong is not None:
        kept = [penalised(group, overlong, collector.domains) for group in kept]
    metrics = {
        name: Metric(Reduction(rule), value, weight) for name, (rule, value, weight) in stored["metrics"].items()
    }
    return Collected(tuple(kept), sampled, stored["positions"], metrics, places)


def _plain(metric: Metric) -> tuple[str, float, float]:
    value, weight = metric.added_up()
    return metric.reduction.value, float(value), float(weight)
