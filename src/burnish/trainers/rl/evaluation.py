"""Held-out evaluation: the greedy response, k samples for pass@k and maj@k, and what a critic expects of them.

`build_evaluator` makes it from a run file.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console

from burnish.algorithms.statistics import explained_variance, pass_at_k, wilson_interval
from burnish.config.domains import DomainSettings, domain_settings
from burnish.config.schema import RewardConfig, RlConfig
from burnish.data.feeds import EncodedPrompt, evaluation_prompts
from burnish.data.overlap import find_overlap
from burnish.data.prompts import PromptSet
from burnish.models.loading import LoadedModel
from burnish.models.roles import Critic
from burnish.observability.console import say
from burnish.observability.metrics import MetricStore, mean_of, total
from burnish.observability.recorder import TokenValues
from burnish.rewards.protocol import RewardScorer
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import Success, success_of_domain, why_not_measured
from burnish.rollouts.engine import EVALUATION_STEP, RolloutEngine, Sampling
from burnish.trainers.rl.batching import build_batch
from burnish.trainers.rl.domains import asked_by, build_sampling, prompts_of
from burnish.trainers.rl.setup.conversations import Conversations, load_domains
from burnish.trainers.telemetry.groups import describe_conversations, mean_parts, without_scores
from burnish.types import FinishReason, Metric, Prompt, Reduction, Rollout, RolloutGroup, RolloutRequest


@dataclass(frozen=True, slots=True)
class Votes:
    """Voting of samples for an answer (maj@k). answer: the one a sample votes for; None if it abstains. same: whether
    two answers count as one."""

    answer: Callable[[Rollout], str | None]
    same: Callable[[str, str], bool]


BY_TEXT = Votes(lambda rollout: rollout.response.strip(), operator.eq)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out prompts of one domain, and how they are measured.

    success: what counts as solved; without it accuracy, pass@k and maj@k are not measured. votes: for maj@k.
    """

    prompts: Sequence[EncodedPrompt]
    sampling: Sampling
    samples: int
    temperature: float
    success: Success | None
    votes: Votes


_SPENT = frozenset(
    {f"judge/{name}" for name in ("requests", "retries", "tokens_in", "tokens_out", "cost")}
    | {"rollout/engine_restarts", "rollout/lost_workers", "conversation/restarts"}
)
"""Metrics of an evaluation's costs and losses, which would otherwise leave no trace."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates the policy that the engine holds on fixed prompts. `parts`: by the name of the domain, which prompts
    have; a run without `domains` has one part, under None. has_scores: false where only a teacher judges."""

    parts: Mapping[str | None, HeldOut]
    engine: RolloutEngine
    scorer: RewardScorer
    seed: int
    has_scores: bool = True

    def evaluate(self) -> tuple[dict[str, Metric], list[RolloutGroup]]:
        """Metrics named `eval/...`, and the scored responses."""
        asked = [(part, encoded) for part in self.parts.values() for encoded in part.prompts]
        prompts = [encoded.prompt for _, encoded in asked]
        greedy: list[tuple[Sampling, RolloutRequest]] = []
        plain: list[tuple[Sampling, RolloutRequest]] = []
        for group_id, (part, encoded) in enumerate(asked):
            request = RolloutRequest.of(encoded.prompt.id, group_id, encoded.tokens, tuple(range(part.samples)))
            greedy.append((dataclasses.replace(part.sampling, greedy=True), request.greedy()))
            if part.samples:
                # pass@k and maj@k are of the policy itself, without the cuts that training may sample with.
                whole = dataclasses.replace(part.sampling, temperature=part.temperature, top_k=0, top_p=1.0, min_p=0.0)
                plain.append((whole, request))
        groups = self._groups(prompts, self._generate(prompts, greedy), self._generate(prompts, plain))
        for part, ours in self._by_part(groups):
            if part.success is not None:
                part.success.check_parts([r for g in ours for r in (*g.rollouts, g.greedy) if r is not None])
        # Failures are reported as eval/failed_fraction: they, and these tokens, must not count in the next step.
        spent = MetricStore.of((self.scorer.take_metrics(), self.engine.take_metrics())).merged()
        kept = {f"eval/{name}": metric for name, metric in spent.items() if name in _SPENT}
        metrics = self.describe(groups) | kept
        return metrics if self.has_scores else without_scores(metrics), groups

    def describe(self, groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
        metrics = self._summary(groups, "eval")
        greedy = [group.greedy for group in groups if group.greedy is not None]
        metrics |= mean_parts(greedy, "eval/part") | describe_conversations(greedy, "eval/")
        domains = sorted({group.prompt.domain for group in groups})
        if len(domains) > 1 or None not in self.parts:
            for domain in domains:
                metrics |= self._summary([g for g in groups if g.prompt.domain == domain], f"eval/domain/{domain}")
        return metrics

    def part_of(self, group: RolloutGroup) -> HeldOut:
        return self.parts[None] if None in self.parts else self.parts[group.prompt.domain]

    def _by_part(self, groups: Sequence[RolloutGroup]) -> list[tuple[HeldOut, list[RolloutGroup]]]:
        return [(part, [g for g in groups if self.part_of(g) is part]) for part in self.parts.values()]

    def _generate(
        self, prompts: Sequence[Prompt], requests: Sequence[tuple[Sampling, RolloutRequest]]
    ) -> list[Rollout]:
        alike: dict[Sampling, list[RolloutRequest]] = defaultdict(list)
        for sampling, request in requests:
            alike[sampling].append(request)
        rollouts: list[Rollout] = []
        for sampling, some in alike.items():
            rollouts += self.engine.generate(some, sampling, seed=self.seed, step=EVALUATION_STEP)
        return self.scorer.score([(prompts[r.group_id], r) for r in rollouts])

    def _groups(
        self, prompts: Sequence[Prompt], greedy: Sequence[Rollout], sampled: Sequence[Rollout]
    ) -> list[RolloutGroup]:
        by_group: dict[int, list[Rollout]] = defaultdict(list)
        for rollout in sampled:
            by_group[rollout.group_id].append(rollout)
        ordered = sorted(greedy, key=lambda rollout: rollout.group_id)
        return [RolloutGroup(prompts[r.group_id], r.group_id, tuple(by_group[r.group_id]), r) for r in ordered]

    def _summary(self, groups: Sequence[RolloutGroup], prefix: str) -> dict[str, Metric]:
        greedy = [g.greedy for g in groups if g.greedy is not None]
        rewards = [r.reward for r in greedy if r.reward is not None]
        metrics = {
            "reward_mean": mean_of(rewards),
            **self._accuracy(groups),
            "response_tokens_mean": mean_of([r.num_sampled() for r in greedy]),
            "truncated_fraction": mean_of([r.finish_reason is FinishReason.LENGTH for r in greedy]),
            "failed_fraction": mean_of([r.reward is None for r in greedy]),
            "prompts": total(len(groups)),
            **self._of_samples(groups),
        }
        return {f"{prefix}/{name}": metric for name, metric in metrics.items()}

    def _accuracy(self, groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
        """Accuracy over the responses that can be judged, with its interval over prompts."""
        pairs = [(self.part_of(group).success, group.greedy) for group in groups]
        judged = [success.solved(greedy) for success, greedy in pairs if success is not None and greedy is not None]
        found = [solved for solved in judged if solved is not None]
        if not found:
            return {}
        low, high = wilson_interval(sum(found) / len(found), len(found))
        ends = {"accuracy_low": low, "accuracy_high": high}
        return {"accuracy": mean_of(found)} | {name: Metric(Reduction.LAST, end) for name, end in ends.items()}

    def _of_samples(self, groups: Sequence[RolloutGroup]) -> dict[str, Metric]:
        """Metrics over the samples (pass@k, maj@k). Empty unless all prompts have the same number of them, above 0."""
        counts = {self.part_of(group).samples for group in groups}
        if len(counts) != 1 or 0 in counts:
            return {}
        (samples,) = counts
        metrics = {
            "sampled_reward_mean": mean_of([r.reward for g in groups for r in g.rollouts if r.reward is not None])
        }
        verdicts, winners = [], []
        for part, ours in self._by_part(groups):
            if part.success is None:
                continue
            for group in ours:
                solved = [part.success.solved(rollout) for rollout in group.rollouts]
                if len(solved) == samples and None not in solved:
                    verdicts.append(solved.count(True))
                    winners.append(bool(part.success.solved(majority(group.rollouts, part.votes))))
        if all(self.part_of(group).success is None for group in groups):
            return metrics
        for k in powers_up_to(samples):
            metrics[f"pass@{k}"] = mean_of([pass_at_k(samples, solved, k) for solved in verdicts])
        metrics[f"maj@{samples}"] = mean_of(winners)
        return metrics


def majority(rollouts: Sequence[Rollout], votes: Votes) -> Rollout:
    """A response of the largest set with the same answer; of sets of equal size, the one seen first."""
    ballots: list[tuple[str | None, list[Rollout]]] = []
    for rollout in rollouts:
        answer = votes.answer(rollout)
        for known, voters in ballots:
            if answer is not None and known is not None and votes.same(known, answer):
                voters.append(rollout)
                break
        else:
            ballots.append((answer, [rollout]))
    return max((voters for _, voters in ballots), key=len)[0]


def powers_up_to(limit: int) -> list[int]:
    """1, 2, 4 ... below the limit, and the limit itself."""
    powers = [1 << e for e in range(limit.bit_length()) if 1 << e < limit]
    return [*powers, limit]


def held_out_values(
    critic: Critic, groups: Sequence[RolloutGroup], *, pad_token_id: int
) -> tuple[dict[str, Metric], TokenValues]:
    """Metrics `eval/...`, and the values of every response, including greedy ones.

    The value before the first token, which depends only on the prompt, is compared with the response's score (no KL, no
    discount). This uses the sampled responses, which are what a critic is trained for, or if there are none the greedy
    ones. `eval/explained_variance` is left out if all scores are equal.
    """
    rollouts = [r for g in groups for r in (*g.rollouts, g.greedy) if r is not None and r.response_tokens]
    if not rollouts:
        return {}, {}
    batch = build_batch(rollouts, pad_token_id=pad_token_id, mask_truncated=False)
    rows = critic.values(batch).tolist()
    values = {r.key: tuple(row[: len(r.response_tokens)]) for r, row in zip(rollouts, rows, strict=True)}
    return _describe(_judged(groups), values), values


def _judged(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    sampled = [r for g in groups for r in g.rollouts]
    chosen = sampled or [g.greedy for g in groups if g.greedy is not None]
    return [r for r in chosen if r.reward is not None and r.response_tokens]


def _describe(judged: Sequence[Rollout], values: TokenValues) -> dict[str, Metric]:
    expected = torch.tensor([values[r.key][0] for r in judged], dtype=torch.float64)
    scores = torch.tensor([r.reward for r in judged], dtype=torch.float64)
    metrics = {"eval/value_mean": mean_of(expected.tolist())}
    if not judged:
        return metrics
    residual, variance = (values.var(correction=0).item() for values in (scores - expected, scores))
    explained = explained_variance(residual, variance)
    if explained is not None:
        metrics["eval/explained_variance"] = Metric(Reduction.LAST, explained)
    return metrics


def build_evaluator(
    config: RlConfig,
    loaded: LoadedModel,
    engine: RolloutEngine,
    scorer: ProcessRewardScorer,
    console: Console,
    conversations: Conversations,
    *,
    train: Mapping[str, PromptSet] | None = None,
) -> Evaluator | None:
    """Build the evaluator, and report which held-out prompts are also in `train`. None without held-out data."""
    settings = domain_settings(config)
    held_out = load_domains(config, settings, loaded.tokenizer, loaded.context_length, "eval", conversations)
    if not held_out:
        return None
    for prompts in held_out.values():
        say(console, prompts.lines())
    say(console, find_overlap(() if train is None else asked_by(train), asked_by(held_out)).lines())
    scorer.check_prompts(prompts_of(held_out))
    parts = {
        domain.name: build_held_out(config, domain, held_out[domain.key], scorer, console)
        for domain in settings
        if domain.key in held_out
    }
    return Evaluator(parts, engine, scorer, config.seed, has_scores=config.has_scores)


def build_held_out(
    config: RlConfig, domain: DomainSettings, prompts: PromptSet, scorer: ProcessRewardScorer, console: Console
) -> HeldOut:
    settings = domain.evaluation
    success = success_of_domain(domain, scorer.answer_labels)
    if success is None:
        why = why_not_measured(settings)
        say(console, (f"{domain.name}: {why}" if domain.name is not None else why,))
    return HeldOut(
        prompts=evaluation_prompts(prompts, settings.max_prompts, seed=config.seed),
        sampling=dataclasses.replace(build_sampling(config, domain), only_scored=True),
        samples=settings.samples,
        temperature=settings.temperature,
        success=success,
        votes=votes_of(domain.rewards) if settings.samples else BY_TEXT,
    )


def votes_of(rewards: Sequence[RewardConfig]) -> Votes:
    """Votes by the answers that the reward `math` reads and considers equal, if it is one of the rewards; else by the
    text."""
    chosen = next((reward for reward in rewards if reward.name == "math"), None)
    if chosen is None:
        return BY_TEXT
    from burnish.rewards.builtins.equality import equal
    from burnish.rewards.builtins.math_answer import MathAnswer

    reader = MathAnswer(**chosen.options)
    return Votes(lambda rollout: reader.extract(rollout.response), equal)
