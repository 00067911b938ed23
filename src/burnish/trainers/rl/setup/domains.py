"""The domains of a run, made from its run file: their prompts, how each is sampled, and which of its prompts and groups
teach.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.algorithms.advantages import resolve_estimator
from burnish.config import names
from burnish.config.domains import ALL, DomainSettings, Split, sources_of
from burnish.config.schema import RlConfig
from burnish.data.chat import uses_template
from burnish.data.feeds import DomainFeeds, Drawn, Positions, SampledPrompts
from burnish.data.overlap import Asked
from burnish.data.prompts import ELSEWHERE, DomainRows, PromptSet, check_golds, load_prompts
from burnish.data.shares import Shares
from burnish.data.template import ChatFormat, refuse_unused_options
from burnish.errors import ConfigError
from burnish.models.tokenizers import chat_template_for
from burnish.rewards.scorer import ProcessRewardScorer
from burnish.rewards.success import success_of_domain
from burnish.rollouts.engine import Sampling
from burnish.trainers.outer_loop import Progress
from burnish.trainers.rl.difficulty import Filter, PassRates, recorded_outcomes
from burnish.types import Json, Prompt, RolloutGroup, Tokenizer


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


def load_prompt_set(
    config: RlConfig,
    domain: DomainSettings,
    tokenizer: Tokenizer,
    context_tokens: int | None,
    split: Split,
    offered: tuple[Mapping[str, Json], ...] = (),
) -> PromptSet:
    """The prompts of a domain, encoded and cut as the run file says. They offer these tools, by their schemas.
    ConfigError if the domain has none to train on, or none at all."""
    sources = sources_of(config, domain, split)
    if not sources:
        field = domain.title(f"data.{split}")
        raise ConfigError(f"{field} is empty", remedy=f"name at least one data set in {field}")
    found = load_prompts(
        sources,
        tokenizer=with_template(tokenizer, domain.chat_template),
        max_prompt_tokens=domain.max_prompt_tokens,
        over_long=config.data.over_long,
        chat=ChatFormat(domain.chat, domain.template_options),
        context_tokens=context_tokens,
        room=domain.max_response_tokens if config.rollout.ignore_eos else 1,
        query=config.data.query,
        rows=DomainRows.of(config, domain, split),
        offered=offered,
    )
    check_golds(domain, sources, found.prompts)
    has_own = domain.conversation is None and (domain.name is None or domain.own.template_options)
    if split == "train" and found and has_own:
        chat = ChatFormat(domain.chat, domain.template_options)
        applied = sum(uses_template(prompt, chat) for prompt in found.prompts)
        refuse_unused_options(chat, applied=applied, field=domain.place("data.template_options"))
    if not found and (split == "train" or not domain.is_trained):
        purpose = "trained" if split == "train" else "evaluated"
        raise ConfigError(
            f"data.{split} has no row for the domain {domain.name!r}, which is to be {purpose}{_left_out(found)}",
            remedy=f"set domains.{domain.name}.{split}, or check the domains of the rows"
            + (" and the limits on them" if found.understandings else ""),
        )
    return found


def _left_out(prompts: PromptSet) -> str:
    """Count the rows of the domain that were left out, by reason."""
    skipped = sum((Counter(understanding.skipped) for understanding in prompts.understandings), Counter[str]())
    del skipped[ELSEWHERE]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items())
    return f" (left out: {reasons})" if reasons else ""


def with_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    """The tokenizer with this chat template, if one is given."""
    if template is None:
        return tokenizer
    other = copy.copy(tokenizer)
    other.chat_template = chat_template_for(tokenizer, template)
    return other
