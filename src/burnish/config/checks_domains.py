"""Contradictions in the `domains` and `conversation` sections of an RL run file; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from burnish.config import names
from burnish.config.domains import DomainSettings, domain_settings, sources_of, stages
from burnish.config.problems import Problem
from burnish.config.schema_domains import RewardConfig
from burnish.config.schema_evaluation import RlEvaluationConfig
from burnish.config.schema_rl import RlFields
from burnish.config.schema_rollout import ConversationConfig
from burnish.errors import did_you_mean, suggestion


def check_domains(config: RlFields) -> Iterator[Problem]:
    """Yield all contradictions in the domains of a run file, and in the rewards that name domains."""
    found = domain_settings(config)
    yield from _groups_of_one(config, found)
    if not config.domains:
        return
    yield from _bound_rewards(config)
    yield from _data(config, found)
    yield from () if config.teaches_alone else _paid(found)
    yield from _together(config, found)
    for domain in found:
        yield from _schedule(config, f"domains.{domain.name}.share", domain.shares)
        yield from _limits(config, domain)
        yield from _difficulty(config, domain)
        yield from _judged(domain)


def _bound_rewards(config: RlFields) -> Iterator[Problem]:
    """Check the domains that rewards name."""
    for index, reward in enumerate(config.rewards):
        for name in (name for name in reward.domains if name not in config.domains):
            message = f"names {name!r}, which is not a domain of this run"
            yield Problem(f"rewards.{index}.domains", message, suggestion(name, config.domains))
    for name, domain in config.domains.items():
        for index, reward in enumerate(domain.rewards):
            if reward.domains:
                message = f"is set, but this reward belongs to the domain {name}"
                remedy = "remove it, or put the reward under `rewards`"
                yield Problem(f"domains.{name}.rewards.{index}.domains", message, remedy)


def _data(config: RlFields, found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    for split in ("train", "eval"):
        shared = config.data.train if split == "train" else config.data.eval
        own = [domain for domain in found if (domain.train if split == "train" else domain.eval)]
        if shared and len(own) == len(found):
            message = f"is set, but every domain names its own {split} data"
            yield Problem(f"data.{split}", message, f"remove it, or the `{split}` of the domains of its rows")
    for domain in found:
        if domain.is_trained and not domain.train and not config.data.train:
            remedy = f"set domains.{domain.name}.train, data.train with rows of this domain, or share: 0"
            yield Problem(f"domains.{domain.name}.train", "is empty, so the domain has nothing to train on", remedy)
        if not domain.is_trained and not sources_of(config, domain, "eval"):
            message = "is 0 and the domain has no held-out data, so it is neither trained nor evaluated"
            remedy = f"set domains.{domain.name}.eval, data.eval with rows of this domain, or a share"
            yield Problem(f"domains.{domain.name}.share", message, remedy)
        for index, source in enumerate((*domain.train, *domain.eval)):
            if source.domain is not None:
                field = f"domains.{domain.name}: data set {index + 1}"
                yield Problem(field, f"sets domain: {source.domain}", f"remove it: its rows belong to {domain.name}")


def _paid(found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    """Refuse domains in which every response would have the score 0, or none."""
    for domain in found:
        message, remedy = "", f"set domains.{domain.name}.rewards, or let an entry of `rewards` apply to it"
        if not domain.rewards:
            message = "is empty, and no other reward applies to this domain"
        elif all(reward.audit for reward in domain.rewards):
            message = "has only audits, which are not part of a score"
        elif domain.is_trained and all(reward.trained_weight == 0 for reward in domain.rewards):
            message, remedy = "has only weights of 0, so every score would be 0", "give one of them a weight"
        if message:
            yield Problem(f"domains.{domain.name}.rewards", message, remedy)


def _together(config: RlFields, found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    """Refuse shares that are all 0, and whitening that would undo the weights of domains."""
    firsts = sorted({first for domain in found for first in domain.shares})
    for first in firsts:
        at = [max((step for step in domain.shares if step <= first), default=None) for domain in found]
        if all(step is None or domain.shares[step] == 0 for step, domain in zip(at, found, strict=True)):
            yield Problem("domains", f"all have the share 0 from step {first} on", "give one of them a share")
    if config.whitens_minibatches and any(domain.weighs for domain in found):
        message = "is minibatch, which would undo the weights of domains and responses"
        yield Problem("algorithm.whiten_over", message, "set it to step, or remove loss_weight and similar weights")


def _schedule(config: RlFields, field: str, schedule: Mapping[int, object]) -> Iterator[Problem]:
    if min(schedule, default=1) != 0:
        yield Problem(field, "has no value for the start of the run", "add a value for step 0")
    for first in (first for first in schedule if first > config.steps):
        yield Problem(field, f"has a value from step {first} on, but the run has {config.steps} steps", "remove it")


def _limits(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    """Refuse limits above the ones in `rollout`, for which memory and context of the whole run are planned."""
    rollout = config.rollout
    for name, own, most in (
        ("max_prompt_tokens", domain.max_prompt_tokens, rollout.max_prompt_tokens),
        ("max_response_tokens", domain.max_response_tokens, rollout.max_response_tokens),
    ):
        if own > most:
            message = f"is {own:,}, above rollout.{name} ({most:,}), the limit of all domains"
            yield Problem(f"domains.{domain.name}.{name}", message, f"raise rollout.{name}, or lower it")


def _groups_of_one(config: RlFields, found: tuple[DomainSettings, ...]) -> Iterator[Problem]:
    """Refuse groups of one response in trained domains if a setting compares the responses to a prompt."""
    estimator, said = config.algorithm.estimator, set[str]()
    for domain in (domain for domain in found if domain.is_trained and domain.group_size == 1):
        field, difficulty = domain.place("rollout.group_size"), domain.difficulty
        if estimator in names.GROUP_ESTIMATORS and field not in said:
            said.add(field)  # several domains may have the value of `rollout`
            message = f"is 1, but the estimator {estimator!r} compares the responses to each prompt with one another"
            others = "reinforce_plus_plus, remax, raw"
            yield Problem(field, message, f"set it to 2 or more (8 is usual), or use one without groups: {others}")
        spread = difficulty is not None and bool(difficulty.min_spread)
        dynamic = domain.place("algorithm.dynamic_sampling")
        for setting, is_on, does in (
            (dynamic, domain.dynamic_sampling, "replaces groups whose scores are"),
            (f"domains.{domain.name}.difficulty.min_spread", spread, "leaves out groups whose scores are"),
            (f"domains.{domain.name}.normalize", domain.own.normalize == "group", "leaves 0 of scores that are"),
        ):
            if is_on and setting not in said:
                said.add(setting)
                message = f"is 1, and {setting} {does} all equal: here, every group"
                yield Problem(field, message, f"set it to 2 or more, or remove {setting}")


def _difficulty(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    difficulty, field = domain.difficulty, f"domains.{domain.name}.difficulty"
    if difficulty is None:
        return
    bounds = stages(difficulty.keep)
    yield from _schedule(config, f"{field}.keep", bounds)
    if not {"keep", "min_spread"} & difficulty.model_fields_set:
        yield Problem(field, "leaves nothing out", f"set {field}.keep or .min_spread, or remove it")
    for low, high in bounds.values():
        if low > high:
            yield Problem(f"{field}.keep", f"is [{low:g}, {high:g}]", "write the lower bound first")
        elif domain.is_trained and not any(low <= n / domain.group_size <= high for n in range(domain.group_size + 1)):
            message = f"is [{low:g}, {high:g}], but no share of {domain.group_size} responses (group_size) lies within"
            yield Problem(f"{field}.keep", message, "widen it, or raise group_size")
    if domain.is_trained and domain.dynamic_sampling and difficulty.outside == "drop":
        message = f"is drop, but {domain.place('algorithm.dynamic_sampling')} replaces the groups that are left out"
        remedy = f"set it to refill, or domains.{domain.name}.dynamic_sampling to false"
        yield Problem(f"{field}.outside", message, remedy)


def _judged(domain: DomainSettings) -> Iterator[Problem]:
    if domain.own.evaluation.success is not None:
        section = f"domains.{domain.name}.evaluation"
        yield from judging_reward(domain.evaluation, domain.rewards, section, "a reward of this domain")


def judging_reward(
    evaluation: RlEvaluationConfig, rewards: Sequence[RewardConfig], section: str, of: str
) -> Iterator[Problem]:
    """Check the reward that decides whether a response is solved: it must exist (`of`: where it should be), and a
    reward model needs `success_score`."""
    name, by_label = evaluation.success, {reward.log_label: reward for reward in rewards}
    if name is None:
        return
    label = name if name in by_label else name.partition("/")[0]
    if label not in by_label:
        message = f"is {name!r}, which is not the label of {of}"
        yield Problem(f"{section}.success", message, suggestion(name, by_label))
    elif name == label and by_label[label].is_model and evaluation.success_score is None:
        message = f"is not set, but {section}.success is {name!r}, a reward model, whose scores have no maximum"
        remedy = "set it to the score at which a response counts as solved"
        yield Problem(f"{section}.success_score", message, remedy)


def check_conversations(config: RlFields) -> Iterator[Problem]:
    """Yield all contradictions in the settings of conversations, and with other sections."""
    found = domain_settings(config)
    for domain in found:
        if domain.conversation is not None:
            yield from _partner(domain.conversation, domain.place("conversation"))
            yield from _turn_limits(domain, domain.conversation)
        yield from _paid_by_environment(domain)
    if any(domain.conversation is not None for domain in found):
        yield from _with_conversations(config)


def _partner(conversation: ConversationConfig, section: str) -> Iterator[Problem]:
    if conversation.agent is not None:
        yield from _agent_alone(conversation, section)
    elif not conversation.tools and conversation.environment is None:
        yield Problem(
            section, "has no tools, no environment and no agent", f"set {section}.tools or {section}.environment"
        )
    if (conversation.environment or "").startswith("agent:"):
        yield Problem(f"{section}.environment", "names an agent", f"set {section}.agent, without `agent:`")
    has_agent, has_environment = conversation.agent is not None, conversation.environment is not None
    for field, owner, is_used in (
        ("agent_options", "agent", has_agent),
        ("agent_settings", "agent", has_agent),
        ("environment_options", "environment", has_environment),
        ("same_start", "environment", has_environment or has_agent),
        ("open_timeout_seconds", "environment", has_environment or has_agent),
        ("parser", "tools", bool(conversation.tools) or has_environment or has_agent),
    ):
        if not is_used and vars(conversation)[field] not in ({}, ConversationConfig.model_fields[field].default):
            yield Problem(f"{section}.{field}", f"is set, but {section}.{owner} is not", f"set {section}.{owner}")
    seen = set[str]()
    for index, tool in enumerate(conversation.tools):
        if tool.options and not tool.is_served:
            message = f"is set, but {tool.name} is a function, which has no options"
            remedy = did_you_mean(tool.name, names.SERVED_TOOLS, "remove it")
            yield Problem(f"{section}.tools.{index}.options", message, remedy)
        if tool.name in seen and tool.name != names.MCP_TOOL:
            yield Problem(f"{section}.tools.{index}", f"{tool.name!r} is listed twice", "remove one of them")
        seen.add(tool.name)


def _agent_alone(conversation: ConversationConfig, section: str) -> Iterator[Problem]:
    """Refuse tools, an environment and `trajectory: fork` next to an agent, which holds the whole conversation."""
    for name, is_set in (("tools", conversation.tools), ("environment", conversation.environment)):
        if is_set:
            message = f"is set, and so is {section}.agent, which holds the whole conversation"
            yield Problem(f"{section}.{name}", message, f"leave it to the agent, or remove {section}.agent")
    if conversation.trajectory == "fork":
        message = "is set, but an agent manages its own history, and each edit always starts a new row"
        yield Problem(f"{section}.trajectory", message, "remove it")


def _turn_limits(domain: DomainSettings, conversation: ConversationConfig) -> Iterator[Problem]:
    section, most = domain.place("conversation"), domain.max_response_tokens
    if conversation.max_turn_tokens is not None and conversation.max_turn_tokens > most:
        message = f"is {conversation.max_turn_tokens}, but all turns together may have {most}"
        remedy = f"lower it, or raise {domain.title('rollout.max_response_tokens')}"
        yield Problem(f"{section}.max_turn_tokens", message, remedy)
    if domain.chat == "never":
        field = domain.title("data.chat")
        yield Problem(field, f"is never, but {section} needs a chat template", "set it to always or auto")


def _paid_by_environment(domain: DomainSettings) -> Iterator[Problem]:
    """Refuse the reward `environment` for prompts that no environment or agent answers."""
    paid = any(reward.name == names.ENVIRONMENT_REWARD and reward.scores(domain.key) for reward in domain.rewards)
    conversation = domain.conversation
    if paid and (conversation is None or (conversation.environment is None and conversation.agent is None)):
        of = f" of the domain {domain.name}" if domain.name is not None else ""
        message = f"has the reward environment, but no environment or agent rewards the prompts{of}"
        yield Problem("rewards", message, f"set {domain.place('conversation')}.environment or .agent")


def _with_conversations(config: RlFields) -> Iterator[Problem]:
    """Refuse settings that cannot be combined with conversations."""
    if config.partial:
        message = "is true, but a turn of a conversation keeps the weights it started with"
        yield Problem("partial", message, "set it to false, or remove conversation")
    found = domain_settings(config)
    forks = [domain for domain in found if domain.conversation is not None and domain.conversation.trajectory == "fork"]
    for domain in forks:
        yield from _credit_of_turns(config, domain)
    if config.rollout.ignore_eos:
        message = "is true, so no turn of a conversation would end"
        yield Problem("rollout.ignore_eos", message, "set it to false, or remove conversation")
    if config.scoring.truncate_token is not None:
        message = "cuts responses for scoring, but the turns of a conversation cannot be cut"
        yield Problem("scoring.truncate_token", message, "remove it, or conversation")


def _credit_of_turns(config: RlFields, domain: DomainSettings) -> Iterator[Problem]:
    """Refuse settings that look at all turns of a conversation: `trajectory: fork` may spread them over several
    rows."""
    section = domain.place("conversation")
    remedy = f"remove it, or {section}.trajectory: fork, with a chat template that leaves earlier turns as they are"
    message = f"looks at all turns of a conversation, but with {section}.trajectory: fork they may be in several rows"
    if config.algorithm.estimator in names.TURN_ESTIMATORS:
        yield Problem("algorithm.estimator", f"{config.algorithm.estimator} {message}", remedy)
    if config.algorithm.discount == "turn":
        yield Problem("algorithm.discount", f"turn {message}", remedy)
    if any(reward.options.get("by_turn") and reward.scores(domain.key) for reward in domain.rewards):
        yield Problem("rewards", f"by_turn {message}", remedy)
