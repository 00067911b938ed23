"""Held-out evaluation: the greedy response, and k samples for pass@k and maj@k, overall and by domain."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from burnish.algorithms.statistics import pass_at_k
from burnish.observability.metrics import mean_of
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.success import Success
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.trainers.rl.collection import GREEDY_SAMPLE, EncodedPrompt
from burnish.trainers.telemetry.groups import mean_parts
from burnish.types import FinishReason, Metric, Rollout, RolloutGroup, RolloutRequest

EVALUATION_STEP = -1
"""Used as the step in the sampling noise, so that all evaluations of a run sample with the same noise."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates the policy that the engine holds on a fixed list of prompts.

    success: what counts as solved; without it accuracy, pass@k and maj@k are not measured.
    """

    prompts: Sequence[EncodedPrompt]
    engine: RolloutEngine
    scorer: RewardScorer
    sampling: Sampling
    samples: int
    temperature: float
    success: Success | None
    seed: int
    vote_key: Callable[[Rollout], str]

    def evaluate(self) -> tuple[dict[str, Metric], list[RolloutGroup]]:
        """Metrics named `eval/...`, and the scored responses."""
        requests = [
            RolloutRequest(encoded.prompt.id, group_id, encoded.tokens, (GREEDY_SAMPLE,))
            for group_id, encoded in enumerate(self.prompts)
        ]
        greedy = self._generate(requests, dataclasses.replace(self.sampling, greedy=True))
        sampled: list[Rollout] = []
        if self.samples:
            indices = tuple(range(self.samples))
            asked = [dataclasses.replace(request, sample_indices=indices) for request in requests]
            # pass@k and maj@k of the policy itself: without the cuts that training may sample with.
            plain = dataclasses.replace(self.sampling, temperature=self.temperature, top_k=0, top_p=1.0, min_p=0.0)
            sampled = self._generate(asked, plain)
        if self.success is not None:
            self.success.check_parts([*greedy, *sampled])
        groups = self._groups(greedy, sampled)
        # Failures are reported as eval/failed_fraction: they, and these tokens, must not count in the next step.
        self.scorer.take_metrics()
        self.engine.take_metrics()
        return self.describe(groups), groups

    def describe(self, groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
        metrics = self._summary(groups, "eval")
        metrics |= mean_parts([g.greedy for g in groups if g.greedy is not None], "eval/part")
        domains = sorted({group.prompt.domain for group in groups})
        if len(domains) > 1:
            for domain in domains:
                metrics |= self._summary([g for g in groups if g.prompt.domain == domain], f"eval/domain/{domain}")
        return metrics

    def _generate(self, requests: Sequence[RolloutRequest], sampling: Sampling) -> list[Rollout]:
        rollouts = self.engine.generate(requests, sampling, seed=self.seed, step=EVALUATION_STEP)
        return self.scorer.score([(self.prompts[r.group_id].prompt, r) for r in rollouts])

    def _groups(self, greedy: Sequence[Rollout], sampled: Sequence[Rollout]) -> list[RolloutGroup]:
        by_group: dict[int, list[Rollout]] = defaultdict(list)
        for rollout in sampled:
            by_group[rollout.group_id].append(rollout)
        return [
            RolloutGroup(self.prompts[r.group_id].prompt, r.group_id, tuple(by_group[r.group_id]), r) for r in greedy
        ]

    def _summary(self, groups: Sequence[RolloutGroup], prefix: str) -> dict[str, Metric]:
        greedy = [g.greedy for g in groups if g.greedy is not None]
        rewards = [r.reward for r in greedy if r.reward is not None]
        metrics = {
            "reward_mean": mean_of(rewards),
            **self._accuracy(greedy),
            "response_tokens_mean": mean_of([len(r.response_tokens) for r in greedy]),
            "truncated_fraction": mean_of([r.finish_reason is FinishReason.LENGTH for r in greedy]),
            "failed_fraction": mean_of([r.reward is None for r in greedy]),
            **self._of_samples(groups),
        }
        return {f"{prefix}/{name}": metric for name, metric in metrics.items()}

    def _accuracy(self, greedy: Sequence[Rollout]) -> dict[str, Metric]:
        """Accuracy over the responses that can be judged."""
        if self.success is None:
            return {}
        judged = [self.success.solved(rollout) for rollout in greedy]
        return {"accuracy": mean_of([solved for solved in judged if solved is not None])}

    def _of_samples(self, groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
        if not self.samples:
            return {}
        rewards = [r.reward for g in groups for r in g.rollouts if r.reward is not None]
        metrics = {"sampled_reward_mean": mean_of(rewards)}
        if self.success is None:
            return metrics
        verdicts = [(g.rollouts, [self.success.solved(r) for r in g.rollouts]) for g in groups]
        complete = [(rs, solved) for rs, solved in verdicts if len(rs) == self.samples and None not in solved]
        for k in powers_up_to(self.samples):
            metrics[f"pass@{k}"] = mean_of([pass_at_k(len(rs), solved.count(True), k) for rs, solved in complete])
        winners = [majority(rs, self.vote_key) for rs, _ in complete]
        metrics[f"maj@{self.samples}"] = mean_of([bool(self.success.solved(winner)) for winner in winners])
        return metrics


def majority(rollouts: Sequence[Rollout], vote_key: Callable[[Rollout], str]) -> Rollout:
    """A response of the largest set with the same answer; of sets of equal size, the one seen first."""
    votes: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        votes.setdefault(vote_key(rollout), []).append(rollout)
    return max(votes.values(), key=len)[0]


def powers_up_to(limit: int) -> list[int]:
    """1, 2, 4 ... below the limit, and the limit itself."""
    powers = [1 << e for e in range(limit.bit_length()) if 1 << e < limit]
    return [*powers, limit]
