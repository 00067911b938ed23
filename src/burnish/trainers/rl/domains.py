"""The domains of a run, made from its run file: how each is sampled, and which of its prompts and groups teach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.algorithms.advantages import resolve_estimator
from burnish.config import names
from burnish.config.domains import ALL, DomainSettings
from burnish.config.schema import RlConfig
from burnish.data.feeds import DomainFeeds, Drawn, Positions, SampledPrompts
from burnish.data.overlap import Asked
from burnish.data.prompts import PromptSet
from burnish.data.shares import Shares
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import success_of_domain
from burnish.rollouts.engine import Sampling
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.difficulty import Filter, PassRates, recorded_outcomes
from burnish.types import Prompt, RolloutGroup


@dataclass(frozen=True, slots=True)
class Domain:
    settings: DomainSettings
    sampling: Sampling
    filter: Filter


@dataclass(frozen=True, slots=True)
class Domains:
    """Domains of a run, by key; without a `domains` section one for all prompts. needs_greedy: the score of a greedy
    response is the baseline of its group."""

    by_name: Mapping[str, Domain]
    feeds: DomainFeeds
    rates: PassRates
    needs_greedy: bool

    def of(self, prompt: Prompt) -> Domain:
        return self.by_name.get(ALL) or self.by_name[prompt.domain]

    def draw(self, counts: Mapping[str, int], positions: Positions, step: int) -> tuple[list[Drawn], Positions]:
        """So many prompts of each domain that are worth sampling, from these positions on, and the positions after."""

        def asks_for(name: str, prompt: Prompt) -> bool:
            return self.by_name[name].filter.asks_for(self.rates.of(name, prompt.id), step)

        return self.feeds.draw(counts, positions, asks_for if self.rates.windows else None)

    def lacking(self, wanted: Mapping[str, int], kept: Sequence[RolloutGroup]) -> dict[str, int]:
        """Groups still to be sampled, in the domains that replace groups which teach nothing."""
        found = [self.of(group.prompt).settings.key for group in kept]
        refilled = {name: domain.settings.refills for name, domain in self.by_name.items()}
        return {name: count - found.count(name) if refilled[name] else 0 for name, count in wanted.items()}

    def why_left_out(self, group: RolloutGroup, step: int) -> str:
        """Why a group is not trained on; empty if it is."""
        if all(r.reward is None for r in group.rollouts):
            return "no response has a score"
        if self.needs_greedy and (group.greedy is None or group.greedy.reward is None):
            return "greedy response without a score"
        return self.of(group.prompt).filter.why_left_out(group, step)

    def observe(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Count the outcomes of groups that were collected for this step."""
        for group in groups if self.rates.windows else ():
            domain = self.of(group.prompt)
            self.rates.observe(step, domain.settings.key, group.prompt.id, domain.filter.solved(group))


def prompts_of(sets: Mapping[str, PromptSet]) -> list[Prompt]:
    return [prompt for prompts in sets.values() for prompt in prompts.prompts]


def asked_by(sets: Mapping[str, PromptSet]) -> list[Asked]:
    return [asked for prompts in sets.values() for asked in prompts.asked()]


def build_domains(
    config: RlConfig,
    settings: Sequence[DomainSettings],
    train: Mapping[str, PromptSet],
    scorer: ProcessRewardScorer,
    progress: Progress,
    *,
    begins: bool,
) -> Domains:
    """Build the domains. `begins`: the run has no checkpoint to read pass rates from, so recorded ones are read."""
    windows = {one.key: one.difficulty.window for one in settings if one.difficulty is not None}
    rates = PassRates(windows, progress)
    estimator = resolve_estimator(config.algorithm.estimator)
    compares_parts = "parts_BC" in estimator.inputs
    domains = {}
    for one in settings:
        success = success_of_domain(one, scorer.answer_labels)
        recorded = None if one.difficulty is None else one.difficulty.recorded
        if begins and recorded is not None and success is not None and one.key in train:
            field, ids = f"domains.{one.name}.difficulty.recorded", {prompt.id for prompt in train[one.key].prompts}
            found = recorded_outcomes(recorded, field, success, domain=one.key, prompt_ids=ids)
            rates.begin_with(one.key, found)
        turn_gamma = config.algorithm.gamma if config.algorithm.estimator in names.TURN_ESTIMATORS else None
        parts = [reward.log_label for reward in one.rewards if reward.trained_weight] if compares_parts else []
        teaching = Filter(one.dynamic_sampling, one.difficulty, success, turn_gamma, tuple(parts))
        domains[one.key] = Domain(one, build_sampling(config, one), teaching)
    seed, shuffle = config.seed, config.data.shuffle
    feeds = {name: SampledPrompts(some, some.sampler(seed=seed, shuffle=shuffle)) for name, some in train.items()}
    shares = Shares([one.shares for one in settings], config.rollout.prompts_per_step)
    feed = DomainFeeds([one.key for one in settings], feeds, shares)
    return Domains(domains, feed, rates, estimator.needs_greedy)


def build_sampling(config: RlConfig, domain: DomainSettings) -> Sampling:
    rollout = config.rollout
    return Sampling(
        max_response_tokens=domain.max_response_tokens,
        temperature=rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
        stop_token_ids=rollout.stop_token_ids,
        stop=domain.stop,
        ignore_eos=rollout.ignore_eos,
    )
