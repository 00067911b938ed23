"""Contradictions in the `domains` section of an RL run file; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from burnish.config import names
from burnish.config.domains import DomainSettings, domain_settings, stages
from burnish.config.problems import Problem
from burnish.config.schema_rl import RlFields
from burnish.words import suggestion


def check_domains(config: RlFields) -> Iterator[Problem]:
    """All contradictions in the domains of a run file, and in the rewards that name domains."""
    yield from _bound_rewards(config)
    if not config.domains:
        return
    found = domain_settings(config)
    yield from _data(config, found)
    yield from _together(config, found)
    for domain in found:
        yield from _schedule(config, domain, f"domains.{domain.name}.share", domain.shares)
        yield from _limits(config, domain)
        yield from _groups(config, domain)
        yield from _difficulty(config, domain)
        yield from _judged(domain)


def _bound_rewards(config: RlFields) -> Iterator[Problem]:
    """Domains that rewards name. Without `domains` they are those of the rows, which only reading the data can tell."""
    for index, reward in enumerate(config.rewards if config.domains else ()):
        for name in (name for name in reward.domains if name not in config.domains):
            message = f"names {name!r}, which is not a domain of this run"
            yield Problem(f"rewards.{index}.domains", message, suggestion(name, config.domains))
    for name, domain in config.domains.items():
        for index, reward in enumerate(domain.rewards):
            if reward.domains:
                message = f"is set, but this reward is of the domain {name}"
                remedy = "remove it, or put the reward under `rewards`"
                yield Problem(f"domains.{name}.rewards.{index}.domains", message, remedy)


def _data(config: RlFields, found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    for split in ("train", "eval"):
        shared = config.data.train if split == "train" else config.data.eval
        own = [domain for domain in found if (domain.train if split == "train" else domain.eval)]
        if shared and len(own) == len(found):
            message = f"is set, but every domain names its own {split} data"
            yield Problem(f"data.{split}", message, f"remove it, or the `{split}` of the domains that its rows are of")
    for domain in found:
        if domain.is_trained and not domain.train and not config.data.train:
            remedy = f"set domains.{domain.name}.train, data.train with rows of this domain, or share: 0"
            yield Problem(f"domains.{domain.name}.train", "is empty, so the domain has nothing to train on", remedy)
        if all(reward.audit for reward in domain.rewards):
            remedy = f"set domains.{domain.name}.rewards, or let an entry of `rewards` be for it"
            yield Problem(f"domains.{domain.name}.rewards", "is empty, and no other reward is for this domain", remedy)
        for index, source in enumerate((*domain.train, *domain.eval)):
            if source.domain is not None:
                field = f"domains.{domain.name}: data set {index + 1}"
                yield Problem(field, f"sets domain: {source.domain}", f"remove it: its rows are of {domain.name}")


def _together(config: RlFields, found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    """What domains do not go together with."""
    if config.cluster.window:
        message = "takes the groups that are finished first, which would change the shares of `domains`"
        yield Problem("cluster.window", message, "leave it out, or the domains")
    firsts = sorted({first for domain in found for first in domain.shares})
    for first in firsts:
        at = [max((step for step in domain.shares if step <= first), default=None) for domain in found]
        if all(step is None or domain.shares[step] == 0 for step, domain in zip(at, found, strict=True)):
            yield Problem("domains", f"have shares that are all 0 from step {first} on", "give one of them a share")
    if config.whitens_minibatches and any(domain.weighs for domain in found):
        message = "is minibatch, which would undo the weights of domains and responses"
        yield Problem("algorithm.whiten_over", message, "set it to step, or remove loss_weight and its like")


def _schedule(
    config: RlFields, domain: DomainSettings, field: str, schedule: Mapping[int, object]
) -> Iterator[Problem]:
    if min(schedule, default=1) != 0:
        yield Problem(field, "does not say what holds from the start", "add a value for step 0")
    for first in (first for first in schedule if first > config.steps):
        yield Problem(field, f"has a value from step {first} on, but the run has {config.steps} steps", "remove it")


def _limits(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    """The limits of `rollout` are those of the whole run: memory and the context are planned for them."""
    rollout = config.rollout
    for name, own, most in (
        ("max_prompt_tokens", domain.max_prompt_tokens, rollout.max_prompt_tokens),
        ("max_response_tokens", domain.max_response_tokens, rollout.max_response_tokens),
    ):
        if own > most:
            message = f"is {own:,}, above rollout.{name} ({most:,}), the limit of all domains"
            yield Problem(f"domains.{domain.name}.{name}", message, f"raise rollout.{name}, or lower it")


def _groups(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    size, field = domain.group_size, f"domains.{domain.name}.group_size"
    if domain.own.group_size is None or size > 1:
        return
    if config.algorithm.estimator in names.GROUP_ESTIMATORS:
        message = f"is 1, but the estimator {config.algorithm.estimator!r} compares the responses to a prompt"
        yield Problem(field, message, "set it to 2 or more")
    if domain.dynamic_sampling:
        yield Problem(field, "is 1, so dynamic_sampling would replace every group", "set it to 2 or more")


def _difficulty(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    difficulty, field = domain.difficulty, f"domains.{domain.name}.difficulty"
    if difficulty is None:
        return
    bounds = stages(difficulty.keep)
    yield from _schedule(config, domain, f"{field}.keep", bounds)
    for low, high in bounds.values():
        if low > high:
            yield Problem(f"{field}.keep", f"is [{low:g}, {high:g}]", "write the lower bound first")


def _judged(domain: DomainSettings) -> Iterator[Problem]:
    name, known = domain.own.evaluation.success, {reward.log_label for reward in domain.rewards}
    if name is not None and name not in known and name.partition("/")[0] not in known:
        message = f"is {name!r}, which is not the label of a reward of this domain"
        yield Problem(f"domains.{domain.name}.evaluation.success", message, suggestion(name, known))
