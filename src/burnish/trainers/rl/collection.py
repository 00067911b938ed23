"""The experience of one step: draw prompts, sample responses, score them, drop or refill groups without a signal."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal

import torch

from burnish.algorithms.shaping import overlong_penalty
from burnish.config.schema import RlConfig
from burnish.data.feeds import Drawn, Positions
from burnish.observability.metrics import MetricStore, Stopwatch
from burnish.rewards.protocol import RewardScorer
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.rollouts.outages import Patience, check_scores
from burnish.trainers.rl.domains import Domains
from burnish.trainers.telemetry.groups import describe_audits, describe_domains, describe_groups, describe_penalties
from burnish.types import Metric, Prompt, Rollout, RolloutGroup, RolloutRequest, Sample

Overlaps = Literal["all", "waiting", "none"]


@dataclass(frozen=True, slots=True)
class Collected:
    """Groups that a step trains on (`groups`), all that were sampled for it, and how many prompts of each domain were
    drawn by its end. `places`: domain of each sampled group's prompt, and its position in the order of that domain."""

    groups: tuple[RolloutGroup, ...]
    sampled: tuple[RolloutGroup, ...]
    positions: Positions
    metrics: dict[str, Metric]
    places: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Collector:
    """Runs the engine and the rewards for one step. Its only state is the pass rate of each prompt (`Domains.rates`).

    overlaps: which rewards score responses while others are still being sampled. Not all of them beside an engine that
    samples on the CPU: if one of its cores is busy with a reward, all of its threads wait for it at every matrix
    product. Rewards that wait for an answer keep no core busy. patience: with outages.
    """

    config: RlConfig
    domains: Domains
    engine: RolloutEngine
    scorer: RewardScorer
    overlaps: Overlaps = "none"
    patience: Patience = dataclasses.field(default_factory=Patience)

    def collect(self, step: int, positions: Positions, stopwatch: Stopwatch) -> Collected:
        """Sample and score each domain's groups of `prompts_per_step`. Groups that would not teach are left out, and
        replaced in up to `max_refills` rounds where the domain refills. Raises OutageError if environments or tools
        have failed, or if no response has a score."""
        wanted = lacking = self.domains.feeds.counts(step)
        kept: list[RolloutGroup] = []
        sampled: list[RolloutGroup] = []
        places: list[tuple[str, int]] = []
        asked: Counter[str] = Counter()
        # Groups that cannot teach, such as those whose responses all score the same, are replaced by others.
        for _ in range(1 + self.config.algorithm.max_refills):
            drawn, positions = self.domains.draw(lacking, positions, step)
            if not drawn:  # no prompt has the requested difficulty
                break
            groups = self._sample(drawn, step, first_id=len(sampled), asked=asked, stopwatch=stopwatch)
            # Kept or not: metrics and pass rates are of all that was sampled.
            sampled.extend(groups)
            places.extend((one.domain, one.place) for one in drawn)
            kept.extend(group for group in groups if not self.domains.why_left_out(group, step))
            lacking = self.domains.lacking(wanted, kept)
            if not any(lacking.values()):
                break
        check_scores(sampled, step)
        self.domains.observe(step, sampled)
        metrics = self._describe(sampled, kept, wanted)
        if self.config.algorithm.overlong_buffer is not None:
            # After the filter: a penalty must not make a group of equal answers look informative.
            kept = [penalised(group, self.config.algorithm.overlong_buffer, self.domains) for group in kept]
            metrics |= describe_penalties(kept)
        spent = MetricStore.of((metrics, self.scorer.take_metrics(), self.engine.take_metrics()))
        return Collected(tuple(kept), tuple(sampled), positions, spent.merged(), tuple(places))

    def _describe(
        self, sampled: Sequence[RolloutGroup], kept: Sequence[RolloutGroup], wanted: Mapping[str, int]
    ) -> dict[str, Metric]:
        talk, fixed = self.config.conversation, self.config.rollout.ignore_eos
        turn_limit = None if talk is None else talk.max_turn_tokens
        metrics = describe_groups(sampled, sum(wanted.values()) - len(kept), turn_limit, fixed_length=fixed)
        metrics |= describe_audits(sampled, [reward.log_label for reward in self.config.all_rewards if reward.audit])
        if not self.config.domains:
            return metrics
        solved = {group.group_id: self.domains.of(group.prompt).filter.solved(group) for group in sampled}
        return metrics | describe_domains(sampled, kept, wanted, solved)

    def _sample(
        self, drawn: Sequence[Drawn], step: int, *, first_id: int, asked: Counter[str], stopwatch: Stopwatch
    ) -> list[RolloutGroup]:
        requests: dict[Sampling, list[RolloutRequest]] = {}
        for group_id, one in enumerate(drawn, start=first_id):
            domain, prompt_id = self.domains.by_name[one.domain], one.encoded.prompt.id
            # Sampling noise depends on (prompt id, sample index), so a prompt drawn twice in a step gets new indices.
            indices = tuple(range(asked[prompt_id], asked[prompt_id] + domain.settings.group_size))
            request = RolloutRequest.of(prompt_id, group_id, one.encoded.tokens, indices)
            requests.setdefault(domain.sampling, []).append(request)
            asked[prompt_id] += domain.settings.group_size
        prompts = {group_id: one.encoded.prompt for group_id, one in enumerate(drawn, start=first_id)}
        begin = partial(self._begin_scoring, prompts) if self.overlaps != "none" else None
        generate = partial(self.engine.generate, seed=self.config.seed, step=step, on_finished=begin)
        rollouts: list[Rollout] = []
        greedy: list[Rollout] = []
        with stopwatch.phase("generate"):
            # One call for all that are sampled alike: an engine is fastest with full batches.
            for sampling, some in requests.items():
                rollouts += generate(some, sampling)
                if self.domains.needs_greedy:
                    greedy += generate([one.greedy() for one in some], dataclasses.replace(sampling, greedy=True))
        # Greedy responses too: a baseline has to be of the same scale as what it is subtracted from.
        with stopwatch.phase("reward"):
            scored = self.scorer.score([(prompts[r.group_id], r) for r in [*rollouts, *greedy]])
        # Engines answer in the order of the requests, so the samples of a group are neighbours.
        own = {i: tuple(samples) for i, samples in groupby(scored[: len(rollouts)], key=lambda r: r.group_id)}
        baselines = {r.group_id: r for r in scored[len(rollouts) :]}
        return [RolloutGroup(prompt, i, own[i], baselines.get(i)) for i, prompt in prompts.items()]

    def _begin_scoring(self, prompts: Mapping[int, Prompt], finished: Sequence[Rollout]) -> None:
        """Start scoring responses as soon as they are finished. `prompts`: by group."""
        items = [(prompts[rollout.group_id], rollout) for rollout in finished]
        self.scorer.begin(items, idle_cores=self.overlaps == "all")


def penalised(group: RolloutGroup, fraction: float, domains: Domains) -> RolloutGroup:
    """The group with a soft over-long penalty over the last `fraction` of the length limit. It also applies to the
    greedy response, because that is the baseline of the penalised ones. A conversation of several rows has the length
    of all of them."""
    limit = domains.of(group.prompt).sampling.max_response_tokens
    buffer_tokens = max(1, round(fraction * limit))
    longer: Counter[Sample] = Counter()  # tokens of earlier rows of a conversation
    for rollout in group.rollouts:
        if rollout.ends_in is not None:
            longer[rollout.sample] += len(rollout.response_tokens)
    ends = {r.sample: len(r.response_tokens) for r in group.samples()}

    def length(rollout: Rollout) -> int:
        sample = rollout.sample
        return longer[sample] + ends[sample] if sample in longer else len(rollout.response_tokens)

    rollouts = tuple(_with_penalty(r, length(r), limit, buffer_tokens) for r in group.rollouts)
    greedy = group.greedy and _with_penalty(group.greedy, len(group.greedy.response_tokens), limit, buffer_tokens)
    return dataclasses.replace(group, rollouts=rollouts, greedy=greedy)


def _with_penalty(rollout: Rollout, num_tokens: int, limit: int, buffer_tokens: int) -> Rollout:
    if rollout.reward is None:
        return rollout
    lengths = torch.tensor([num_tokens])
    penalty = float(overlong_penalty(lengths, max_response_tokens=limit, buffer_tokens=buffer_tokens))
    dense = rollout.token_rewards
    return dataclasses.replace(
        rollout,
        reward=rollout.reward + penalty,
        reward_parts={**rollout.reward_parts, "overlong": penalty},
        token_rewards=None if dense is None else (*dense[:-1], dense[-1] + penalty),
    )
