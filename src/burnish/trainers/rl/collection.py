"""The experience of one step: draw prompts, sample responses, score them, drop or refill groups without a signal."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from burnish.algorithms.shaping import overlong_penalty
from burnish.config.schema import RlConfig
from burnish.observability.metrics import MetricStore
from burnish.rewards.protocol import RewardScorer
from burnish.rollouts.engine import OnFinished, RolloutEngine, Sampling
from burnish.trainers.telemetry.groups import describe_groups, describe_penalties
from burnish.trainers.telemetry.stopwatch import Stopwatch
from burnish.types import Metric, Prompt, Rollout, RolloutGroup, RolloutRequest

GREEDY_SAMPLE = -1
"""Sample index of a greedy response. It uses no noise; the number only distinguishes it from sampled ones."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt and the tokens that the policy is given for it."""

    prompt: Prompt
    tokens: tuple[int, ...]


class PromptFeed(Protocol):
    """Endless prompts, a pure function of the position."""

    def take(self, count: int, position: int) -> list[EncodedPrompt]: ...


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step trains on (`groups`), everything that was sampled for it, and the new position of the feed."""

    groups: tuple[RolloutGroup, ...]
    sampled: tuple[RolloutGroup, ...]
    position: int
    metrics: dict[str, Metric]


@dataclass(frozen=True, slots=True)
class Collector:
    """Runs the engine and the rewards for one step. It has no state.

    overlaps: score responses while others are still being sampled. Not for an engine that samples on the CPU: if one of
    its cores is busy with a reward, all of its threads wait for that one at every matrix product.
    """

    config: RlConfig
    feed: PromptFeed
    engine: RolloutEngine
    scorer: RewardScorer
    sampling: Sampling
    needs_greedy: bool
    overlaps: bool = False

    def collect(self, step: int, position: int, stopwatch: Stopwatch) -> Collected:
        """`prompts_per_step` groups. With dynamic sampling, groups whose scores are all equal are replaced."""
        wanted = self.config.rollout.prompts_per_step
        rounds = 1 + (self.config.algorithm.max_refills if self.config.algorithm.dynamic_sampling else 0)
        kept: list[RolloutGroup] = []
        sampled: list[RolloutGroup] = []
        asked: Counter[str] = Counter()
        for _ in range(rounds):
            drawn = self.feed.take(wanted - len(kept), position)
            position += len(drawn)
            groups = self._sample(drawn, step, first_id=len(sampled), asked=asked, stopwatch=stopwatch)
            sampled.extend(groups)
            kept.extend(group for group in groups if self.teaches(group))
            if len(kept) == wanted:
                break
        metrics = describe_groups(sampled, missing=wanted - len(kept), fixed_length=self.sampling.ignore_eos)
        if self.config.algorithm.overlong_buffer is not None:
            # After the filter: a penalty must not make a group of equal answers look informative.
            kept = [self.penalised(group, self.config.algorithm.overlong_buffer) for group in kept]
            metrics |= describe_penalties(kept)
        spent = MetricStore.of((metrics, self.scorer.take_metrics(), self.engine.take_metrics()))
        return Collected(tuple(kept), tuple(sampled), position, spent.merged())

    def _sample(
        self, drawn: Sequence[EncodedPrompt], step: int, *, first_id: int, asked: Counter[str], stopwatch: Stopwatch
    ) -> list[RolloutGroup]:
        requests, size = [], self.config.rollout.group_size
        for group_id, encoded in enumerate(drawn, start=first_id):
            prompt_id = encoded.prompt.id
            # Sampling noise depends on (prompt id, sample index), so a prompt drawn twice in a step gets new indices.
            indices = tuple(range(asked[prompt_id], asked[prompt_id] + size))
            requests.append(RolloutRequest(prompt_id, group_id, encoded.tokens, indices))
            asked[prompt_id] += size
        prompts = {request.group_id: encoded.prompt for request, encoded in zip(requests, drawn, strict=True)}
        begin = self._beginner(prompts) if self.overlaps else None
        with stopwatch.phase("generate"):
            rollouts = self.generate(requests, self.sampling, step, begin)
            greedy = self.greedy(requests, step, begin) if self.needs_greedy else []
        with stopwatch.phase("reward"):
            scored = self.scorer.score([(prompts[r.group_id], r) for r in [*rollouts, *greedy]])
        own = {i: tuple(samples) for i, samples in groupby(scored[: len(rollouts)], key=lambda r: r.group_id)}
        baselines = {r.group_id: r for r in scored[len(rollouts) :]}
        return [RolloutGroup(prompt, i, own[i], baselines.get(i)) for i, prompt in prompts.items()]

    def _beginner(self, prompts: Mapping[int, Prompt]) -> OnFinished:
        """A function that starts scoring responses as soon as they are finished; `prompts` are by group."""

        def begin(finished: Sequence[Rollout]) -> None:
            self.scorer.begin([(prompts[rollout.group_id], rollout) for rollout in finished])

        return begin

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, step: int, begin: OnFinished | None
    ) -> list[Rollout]:
        return self.engine.generate(requests, sampling, seed=self.config.seed, step=step, on_finished=begin)

    def greedy(self, requests: Sequence[RolloutRequest], step: int, begin: OnFinished | None) -> list[Rollout]:
        one_each = [dataclasses.replace(request, sample_indices=(GREEDY_SAMPLE,)) for request in requests]
        greedy = dataclasses.replace(self.sampling, greedy=True)
        return self.generate(one_each, greedy, step, begin)

    def teaches(self, group: RolloutGroup) -> bool:
        if all(r.reward is None for r in group.rollouts):
            return False
        if self.needs_greedy and (group.greedy is None or group.greedy.reward is None):
            return False
        # A signal is two different rewards. Siblings whose reward failed do not count as different.
        differs = len({r.reward for r in group.rollouts if r.reward is not None}) > 1
        return differs or not self.config.algorithm.dynamic_sampling

    def penalised(self, group: RolloutGroup, fraction: float) -> RolloutGroup:
        """The group with a soft over-long penalty over the last `fraction` of the length limit. It also applies to the
        greedy response, because that is the baseline of the penalised ones."""
        limit = self.config.rollout.max_response_tokens
        buffer_tokens = max(1, round(fraction * limit))
        return dataclasses.replace(
            group,
            rollouts=tuple(_with_penalty(r, limit, buffer_tokens) for r in group.rollouts),
            greedy=None if group.greedy is None else _with_penalty(group.greedy, limit, buffer_tokens),
        )


def _with_penalty(rollout: Rollout, limit: int, buffer_tokens: int) -> Rollout:
    if rollout.reward is None:
        return rollout
    penalty = _penalty(len(rollout.response_tokens), limit, buffer_tokens)
    dense = rollout.token_rewards
    return dataclasses.replace(
        rollout,
        reward=rollout.reward + penalty,
        reward_parts={**rollout.reward_parts, "overlong": penalty},
        token_rewards=None if dense is None else (*dense[:-1], dense[-1] + penalty),
    )


def _penalty(num_tokens: int, limit: int, buffer_tokens: int) -> float:
    lengths = torch.tensor([num_tokens])
    return float(overlong_penalty(lengths, max_response_tokens=limit, buffer_tokens=buffer_tokens))
