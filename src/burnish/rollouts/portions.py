"""Requests in portions: fixed groups of rows that are sampled together, on any worker.

A response has the same tokens whatever is sampled next to it, but the last bits of its log-probabilities depend on the
number of rows of a matrix product. Portions that follow from the requests alone make them the same on any number of
workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from burnish.algorithms.balancing import deal
from burnish.models.weights import Weights
from burnish.observability.metrics import MetricStore
from burnish.rollouts.engine import OnFinished, Requests, RestingEngine, RolloutEngine, Sampling, let_rest
from burnish.types import Metric, Rollout, RolloutRequest


@dataclass(slots=True)
class Portion:
    """Requests that are sampled in one call, and the number of workers lost over them.

    If sampling was stopped in between, `requests` are the remaining ones, `rollouts` and `metrics` the results so far.
    """

    index: int
    requests: list[RolloutRequest]
    losses: int = 0
    rollouts: list[Rollout] = field(default_factory=list)
    metrics: MetricStore = field(default_factory=MetricStore)


def cut(requests: Sequence[RolloutRequest], lanes: int, max_response_tokens: int) -> list[Portion]:
    """The requests in at most `lanes` portions of about equal work: a prompt is read once, and each of its samples
    counts with its maximum length."""
    costs = [len(r.prompt_tokens) + len(r.sample_indices) * max_response_tokens for r in requests]
    dealt = [indices for indices in deal(costs, lanes) if indices]
    return [Portion(index, [requests[i] for i in indices]) for index, indices in enumerate(dealt)]


def in_order(requests: Sequence[RolloutRequest], rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts of each request and sample index, in the order of the requests. A sample has one, or several rows
    of a conversation, which stay in their order. KeyError if there is none."""
    by_sample: dict[tuple[int, int], list[Rollout]] = {}
    for rollout in rollouts:
        by_sample.setdefault(rollout.sample, []).append(rollout)
    samples = [(request.group_id, index) for request in requests for index in request.sample_indices]
    return [rollout for sample in samples for rollout in by_sample[sample]]


class PortionedEngine(RestingEngine):
    """An engine of this process that samples portion by portion, as a pool of workers would."""

    def __init__(self, engine: RolloutEngine, lanes: int) -> None:
        self._engine = engine
        self._lanes = lanes

    def generate(
        self, requests: Requests, sampling: Sampling, *, seed: int, step: int, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """See `RolloutEngine`."""
        rollouts: list[Rollout] = []
        for portion in cut(requests, self._lanes, sampling.max_response_tokens):
            rollouts += self._engine.generate(portion.requests, sampling, seed=seed, step=step, on_finished=on_finished)
        return in_order(requests, rollouts)

    def sync(self, weights: Weights) -> None:
        """See `RolloutEngine`."""
        self._engine.sync(weights)

    def take_metrics(self) -> Mapping[str, Metric]:
        """See `RolloutEngine`."""
        return self._engine.take_metrics()

    def rest(self) -> None:
        """See `RestingEngine`."""
        let_rest(self._engine)
