"""From a run file to its agents: the server that they talk to, and the processes that they run in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from burnish.agents.endpoint.agents import GIVEN, AgentEngine, AgentServer, AgentTalk
from burnish.agents.endpoint.chat_tokens import Speech
from burnish.agents.environments.warm_parent import ConversationHost, Wanted
from burnish.config.domains import DomainSettings
from burnish.config.schema import RlConfig
from burnish.data.prompts import PromptSet
from burnish.errors import ConfigError
from burnish.rollouts.engine import RolloutEngine, Sampling
from burnish.trainers.rl.setup.feeds import with_template
from burnish.types import Prompt, Tokenizer


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of the domains that have them, by name. `talks` fills up as prompts are loaded."""

    by_domain: Mapping[str, AgentTalk] = field(default_factory=dict)
    server: AgentServer | None = None
    talks: dict[str, tuple[AgentTalk, Prompt]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def add(self, domain: str, prompts: PromptSet) -> None:
        """Let these prompts be held by agents, if their domain has them. ConfigError if they cannot."""
        if domain not in self.by_domain:
            return
        for prompt in prompts.prompts:
            taken = [name for name in GIVEN if name in prompt.columns and name != "messages"]
            if taken:
                raise ConfigError(
                    f"prompt {prompt.id} has a column {taken[0]!r}, which clashes with an argument of agents",
                    remedy="rename the column",
                )
            known = self.talks.get(prompt.id)
            if known is not None and known[1] != prompt:
                raise ConfigError(
                    f"two prompts have the id {prompt.id!r}, so it would not be known which one an agent gets",
                    remedy="rename one of the data sets (ids begin with the name of the file), or set columns.id",
                )
            self.talks[prompt.id] = (self.by_domain[domain], prompt)

    def around(self, engine: RolloutEngine, others: RolloutEngine, context_length: int) -> RolloutEngine:
        """The engine with the agents of the run. `others`: for prompts that have none."""
        if self.server is None:
            return others
        return AgentEngine(engine, others, self.talks, self.server, context_length=context_length)


@contextmanager
def open_agents(
    config: RlConfig, settings: Sequence[DomainSettings], tokenizer: Tokenizer, end_ids: Sequence[int]
) -> Iterator[Agents]:
    """Start the server and the processes of agents; they are ended at the end. ConfigError or RolloutError if that is
    not possible."""
    having = [one for one in settings if one.conversation is not None and one.conversation.agent is not None]
    with ExitStack() as stack:
        talks = {domain.key: _open_talk(config, domain, tokenizer, end_ids, stack) for domain in having}
        server = None
        if having:
            server = AgentServer()
            stack.callback(server.close)
        yield Agents(talks, server, lines=tuple(line for domain in having for line in _lines(domain)))


def _open_talk(
    config: RlConfig, domain: DomainSettings, tokenizer: Tokenizer, end_ids: Sequence[int], stack: ExitStack
) -> AgentTalk:
    conversation, host = domain.conversation, open_host(domain, stack)
    assert conversation is not None
    assert host is not None
    speech = Speech.of(
        with_template(tokenizer, domain.chat_template),
        (*end_ids, *config.rollout.stop_token_ids),
        domain.template_options,
        parser=conversation.parser,
    )
    rollout = config.rollout
    return AgentTalk(
        host,
        speech,
        # Settings of the run that agents may repeat. Evaluations sample with others, which no agent has to know.
        Sampling(0, temperature=rollout.temperature, top_k=rollout.top_k, top_p=rollout.top_p, min_p=rollout.min_p),
        turns=conversation.max_turns,
        turn_tokens=conversation.max_turn_tokens,
        others=conversation.agent_settings,
        call_seconds=conversation.call_timeout_seconds,
        open_seconds=conversation.open_timeout_seconds,
        open=conversation.max_open,
        in_rounds=conversation.in_rounds,
        same_start=conversation.same_start,
    )


def open_host(domain: DomainSettings, stack: ExitStack) -> ConversationHost | None:
    """Start the processes of a domain's own tools, and of its environment or agent, which `stack` ends. None if it has
    none of these. ConfigError if they cannot be used."""
    conversation, where = domain.conversation, domain.place("conversation")
    assert conversation is not None
    environment, options = conversation.environment, conversation.environment_options
    if conversation.agent is not None:
        environment, options = f"agent:{conversation.agent}", conversation.agent_options
    if environment is None and not conversation.own_tools:
        return None
    variables, seconds = conversation.variables, conversation.start_timeout_seconds
    host = ConversationHost(Wanted(conversation.own_tools, environment, options, where, variables, seconds))
    stack.callback(host.close)
    return host


def _lines(domain: DomainSettings) -> list[str]:
    """Lines for the user on a domain's agent: its name, turns, and whether runs differ in rounding."""
    conversation, where = domain.conversation, domain.place("conversation")
    assert conversation is not None
    lines = [f"{where}: agent {conversation.agent}; at most {conversation.max_turns} turns"]
    if not conversation.in_rounds:
        lines.append(
            f"{where}: turns are sampled as agents ask for them, so log-probabilities may differ in rounding from run "
            f"to run ({where}.in_rounds: true makes them equal)"
        )
    return lines
