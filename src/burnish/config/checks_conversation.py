"""Contradictions in the `conversation` sections of an RL run file; see `burnish.config.checks`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config import names
from burnish.config.domains import DomainSettings, domain_settings
from burnish.config.problems import Problem
from burnish.config.schema_rl import RlFields
from burnish.config.schema_rollout import ConversationConfig


def check_conversations(config: RlFields) -> Iterator[Problem]:
    """Yield all contradictions in the settings of conversations, and with other sections."""
    found = domain_settings(config)
    for domain in found:
        if domain.conversation is not None:
            yield from _partner(domain.conversation, domain.place("conversation"))
            yield from _limits(domain, domain.conversation)
        yield from _paid_by_environment(domain)
    if any(domain.conversation is not None for domain in found):
        yield from _together(config)


def _partner(conversation: ConversationConfig, section: str) -> Iterator[Problem]:
    if conversation.agent is not None:
        yield from _agent_alone(conversation, section)
    elif not conversation.tools and conversation.environment is None:
        yield Problem(
            section, "has no tools, no environment and no agent", f"set {section}.tools or {section}.environment"
        )
    if conversation.agent is None and conversation.agent_options:
        yield Problem(f"{section}.agent_options", f"is set, but {section}.agent is not", f"set {section}.agent")
    if (conversation.environment or "").startswith("agent:"):
        yield Problem(f"{section}.environment", "names an agent", f"set {section}.agent, without `agent:`")
    if conversation.environment_options and conversation.environment is None:
        field = f"{section}.environment_options"
        yield Problem(field, f"is set, but {section}.environment is not", f"set {section}.environment")
    seen = set[str]()
    for index, tool in enumerate(conversation.tools):
        if tool.options and not tool.is_served:
            message = f"is set, but {tool.name} is a function, which has no options"
            yield Problem(f"{section}.tools.{index}.options", message, "remove it")
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


def _limits(domain: DomainSettings, conversation: ConversationConfig) -> Iterator[Problem]:
    section, most = domain.place("conversation"), domain.max_response_tokens
    if conversation.max_turn_tokens is not None and conversation.max_turn_tokens > most:
        message = f"is {conversation.max_turn_tokens}, but all turns together may have {most}"
        remedy = f"lower it, or raise {domain.title('rollout.max_response_tokens')}"
        yield Problem(f"{section}.max_turn_tokens", message, remedy)
    if domain.chat == "never":
        field = domain.title("data.chat")
        yield Problem(field, f"is never, but {section} needs a chat template", "set it to always or auto")


def _paid_by_environment(domain: DomainSettings) -> Iterator[Problem]:
    """Refuse the reward `environment` where there is no environment."""
    paid = any(reward.name == names.ENVIRONMENT_REWARD and reward.scores(domain.key) for reward in domain.rewards)
    conversation = domain.conversation
    if paid and (conversation is None or (conversation.environment is None and conversation.agent is None)):
        of = f" of the domain {domain.name}" if domain.name is not None else ""
        message = f"has the reward environment, but no environment or agent rewards the prompts{of}"
        yield Problem("rewards", message, f"set {domain.place('conversation')}.environment or .agent")


def _together(config: RlFields) -> Iterator[Problem]:
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
