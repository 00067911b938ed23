"""Settings of each domain, with the values of the other sections where a domain has none of its own.

A run file without `domains` has one domain without a name, for all prompts, whatever their rows say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from burnish.config.schema_domains import DifficultyConfig, DomainConfig

if TYPE_CHECKING:
    from burnish.config.schema_data import DataSource
    from burnish.config.schema_domains import RewardConfig
    from burnish.config.schema_evaluation import RlEvaluationConfig
    from burnish.config.schema_rl import RlFields
    from burnish.config.schema_rollout import ConversationConfig
    from burnish.config.schema_teacher import TeacherConfig

ALL = ""
"""Key, in tables and records, of the domain without a name. The name itself is None."""

Value = TypeVar("Value")
Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class DomainSettings:
    """Resolved settings of one domain.

    name: None if the run file has no `domains`. shares: the first step of each stage to the share from then on.
    train, eval: its own data sets; if empty, the rows of `data` that have its name. The other fields are as in
    `DomainConfig`.
    """

    name: str | None
    shares: Mapping[int, float]
    train: tuple[DataSource, ...]
    eval: tuple[DataSource, ...]
    rewards: tuple[RewardConfig, ...]
    group_size: int
    max_prompt_tokens: int
    max_response_tokens: int
    stop: tuple[str, ...]
    chat: Literal["auto", "always", "never"]
    chat_template: str | None
    """The chat template, if it is not the model's."""
    template_options: Mapping[str, Any]
    conversation: ConversationConfig | None
    teacher: TeacherConfig | None
    """Whoever teaches the domain, if anybody does."""
    dynamic_sampling: bool
    difficulty: DifficultyConfig | None
    evaluation: RlEvaluationConfig
    own: DomainConfig = field(default_factory=DomainConfig)
    """The settings that no other section has."""

    @property
    def key(self) -> str:
        """The name, as tables and records have it."""
        return ALL if self.name is None else self.name

    @property
    def is_trained(self) -> bool:
        """True if any stage has prompts of this domain."""
        return any(share > 0 for share in self.shares.values())

    @property
    def refills(self) -> bool:
        """True if groups that are not trained on are replaced."""
        return self.dynamic_sampling or (self.difficulty is not None and self.difficulty.outside == "refill")

    @property
    def weighs(self) -> bool:
        """True if the advantages of some responses weigh more than others."""
        own = self.own
        return own.loss_weight != 1.0 or own.difficulty_weight != 0.0 or own.length_weight != 0.0

    @property
    def asks_what_is_solved(self) -> list[str]:
        """The domain's own settings that require a definition of "solved"."""
        difficulty, asking = self.difficulty, []
        if difficulty is not None and any(bounds != (0.0, 1.0) for bounds in stages(difficulty.keep).values()):
            asking.append("difficulty.keep")
        if difficulty is not None and difficulty.recorded is not None:
            asking.append("difficulty.recorded")
        return [*asking, "difficulty_weight"] if self.own.difficulty_weight else asking

    def place(self, shared: str) -> str:
        """The dotted path that a setting comes from: of the domain, or the one that all domains share
        (`rollout.group_size`, `conversation`)."""
        return shared if vars(self.own)[shared.rpartition(".")[2]] is None else self.title(shared)

    def title(self, shared: str) -> str:
        """The dotted path of a setting, for messages: `domains.math.group_size`, or `rollout.group_size`."""
        return shared if self.name is None else f"domains.{self.name}.{shared.rpartition('.')[2]}"


def domain_settings(config: RlFields) -> tuple[DomainSettings, ...]:
    """The domains of the run, in the order of the run file."""
    if not config.domains:
        return (_settings(config, None, DomainConfig(train=config.data.train, eval=config.data.eval)),)
    return tuple(_settings(config, name, domain) for name, domain in config.domains.items())


def sources_of(config: RlFields, domain: DomainSettings, split: Split) -> tuple[DataSource, ...]:
    """The data sets that hold prompts of the domain: its own, else the shared ones."""
    own, shared = (domain.train, config.data.train) if split == "train" else (domain.eval, config.data.eval)
    return own or shared


def used_domains(config: RlFields, domains: Sequence[DomainSettings], split: Split) -> list[DomainSettings]:
    """The domains that are trained, or that may be evaluated."""
    if split == "train":
        return [domain for domain in domains if domain.is_trained]
    return [domain for domain in domains if sources_of(config, domain, split)]


def responses_per_step(config: RlFields) -> int:
    """Most responses that a step samples before any refill."""
    domains, prompts = domain_settings(config), config.rollout.prompts_per_step
    return max(_most_responses(domains, first, prompts) for domain in domains for first in domain.shares)


def _most_responses(domains: Sequence[DomainSettings], step: int, prompts: int) -> int:
    shares = [at_step(domain.shares, step) for domain in domains]
    sizes = [math.floor(prompts * share / sum(shares)) for share in shares]
    places = prompts - sum(sizes)  # left by rounding down; at most one more for each domain
    larger = sorted((domain.group_size for domain in domains if at_step(domain.shares, step)), reverse=True)
    return sum(n * domain.group_size for n, domain in zip(sizes, domains, strict=True)) + sum(larger[:places])


def stages(value: Value | Mapping[int, Value]) -> Mapping[int, Value]:
    """A value that may differ by stage, by the first step of each stage."""
    return value if isinstance(value, Mapping) else {0: value}


def at_step(schedule: Mapping[int, Value], step: int) -> Value:
    """The value that holds in this step."""
    return schedule[max(first for first in schedule if first <= step)]


def _settings(config: RlFields, name: str | None, own: DomainConfig) -> DomainSettings:
    rollout, data = config.rollout, config.data
    return DomainSettings(
        name=name,
        shares=stages(own.share),
        train=own.train,
        eval=own.eval,
        rewards=tuple(reward for reward in config.all_rewards if name is None or reward.scores(name)),
        group_size=_either(own.group_size, rollout.group_size),
        max_prompt_tokens=_either(own.max_prompt_tokens, rollout.max_prompt_tokens),
        max_response_tokens=_either(own.max_response_tokens, rollout.max_response_tokens),
        stop=_either(own.stop, rollout.stop),
        chat=_either(own.chat, data.chat),
        chat_template=own.chat_template,
        template_options=_either(own.template_options, data.template_options),
        conversation=_either(own.conversation, config.conversation),
        teacher=_either(own.teacher, config.teacher),
        dynamic_sampling=_either(own.dynamic_sampling, config.algorithm.dynamic_sampling),
        difficulty=own.difficulty,
        evaluation=_evaluation(config, name, own),
        own=own,
    )


def _evaluation(config: RlFields, name: str | None, own: DomainConfig) -> RlEvaluationConfig:
    """The reward that decides in general decides here only if it scores the domain."""
    shared, given = config.evaluation, own.evaluation.model_dump(exclude_none=True)
    if given.get("max_prompts") == "all":
        given["max_prompts"] = None
    label = (shared.success or "").partition("/")[0]
    elsewhere = [reward for reward in config.all_rewards if reward.log_label in (label, shared.success)]
    if name is not None and elsewhere and not any(reward.scores(name) for reward in elsewhere):
        shared = shared.model_copy(update={"success": None, "success_score": None})
    return shared.model_copy(update=given)


def _either(own: Value | None, shared: Value) -> Value:
    return shared if own is None else own
