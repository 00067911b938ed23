"""From a run file to the partners of its conversations: tools and environments of each domain."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from burnish.agents.conversation import ConversingEngine, Talk
from burnish.agents.endpoint.chat_tokens import renderer
from burnish.agents.environments.mcp_tools import McpServer, McpTools
from burnish.agents.environments.python_tool import PythonToolOptions, open_python_tool
from burnish.agents.environments.warm_parent import allow_connections
from burnish.agents.observations import ObservationFormat, Observer, rewrites
from burnish.agents.partner import PartnerLimits, ToolsAndEnvironment
from burnish.agents.tool_execution import CallLimits
from burnish.agents.tools.calls import ServedTools
from burnish.agents.tools.checking import function_of
from burnish.agents.tools.parsers.protocol import Schemas, ToolParser
from burnish.agents.tools.parsers.registry import find_parser, recognise
from burnish.config.domains import DomainSettings, Split, used_domains
from burnish.config.names import AUTO_PARSER, KEEP_THINKING, MCP_TOOL, PYTHON_TOOL
from burnish.config.schema import RlConfig
from burnish.config.schema_rl import SandboxConfig
from burnish.config.schema_rollout import ConversationConfig, ToolConfig
from burnish.config.secrets import key_in
from burnish.data.chat import uses_template
from burnish.data.histories import HistoryEncoder
from burnish.data.prompts import PromptSet
from burnish.data.template import ChatFormat, Template
from burnish.errors import ConfigError, DataError, did_you_mean
from burnish.outside.plugins import why_not
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.rl.setup.agents import Agents, open_agents, open_host
from burnish.trainers.rl.setup.feeds import load_prompt_set, with_template
from burnish.types import Json, Prompt, Tokenizer

REMOTE_AT_ONCE = 16
"""Calls of the tool `python` that a server runs at a time, unless the run file says otherwise."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """Domains of a run that hold conversations, by name. As prompts are loaded, `talks` gets the ones with
    conversations, and `single` the ids of the others."""

    by_domain: Mapping[str, Talk] = field(default_factory=dict)
    schemas: Mapping[str, Schemas] = field(default_factory=dict)
    talks: dict[str, tuple[Talk, Prompt]] = field(default_factory=dict)
    single: set[str] = field(default_factory=set)
    tokenizer: Tokenizer | None = None
    agents: Agents = field(default_factory=Agents)
    lines: tuple[str, ...] = ()
    """For the user: partners, tools, turns, and what makes numbers differ."""

    def offered(self, domain: str) -> tuple[Mapping[str, Json], ...]:
        """Schemas of the tools that all prompts of a domain offer, besides the tools in their rows."""
        return tuple(self.schemas.get(domain, ()))

    def add(self, domain: str, prompts: PromptSet, chat: ChatFormat) -> None:
        """Let these prompts begin conversations, if their domain holds them. ConfigError if they cannot."""
        self.agents.add(domain, prompts)
        for prompt in prompts.prompts if self.by_domain else ():
            held = domain in self.by_domain
            if held and not uses_template(prompt, chat):
                raise ConfigError(
                    f"prompt {prompt.id} is plain text, but a conversation needs a chat template",
                    remedy="set data.chat: always",
                )
            if self._is_another(prompt, held):
                raise ConfigError(
                    f"two prompts have the id {prompt.id!r}, so a conversation could not tell its environment which",
                    remedy="rename one of the data sets (ids begin with the name of the file), or set columns.id",
                )
            if held:
                self.talks[prompt.id] = (self.by_domain[domain], prompt)
            else:
                self.single.add(prompt.id)

    def _is_another(self, prompt: Prompt, held: bool) -> bool:
        """Return whether another prompt has this id and one of the two holds conversations: engines know ids alone."""
        known = self.talks.get(prompt.id)
        if held:
            return prompt.id in self.single or (known is not None and known[1] != prompt)
        return known is not None

    def around(self, engine: RolloutEngine, context_length: int) -> RolloutEngine:
        """The engine, holding the conversations of the run."""
        conversing = engine
        if self.by_domain:
            assert self.tokenizer is not None
            decode = partial(self.tokenizer.decode, skip_special_tokens=False)
            conversing = ConversingEngine(engine, self.talks, context_length=context_length, decode=decode)
        return self.agents.around(engine, conversing, context_length)


@contextmanager
def open_conversations(
    config: RlConfig, settings: Sequence[DomainSettings], tokenizer: Tokenizer, end_ids: Sequence[int]
) -> Iterator[Conversations]:
    """Start what the domains converse with; it is ended at the end. end_ids: token ids that end the model's responses.
    ConfigError or DataError if something cannot be used with the model's chat template."""
    lines: list[str] = []
    talks: dict[str, Talk] = {}
    schemas: dict[str, Schemas] = {}
    having = [one.conversation for one in settings if one.conversation is not None]
    allow_connections(sum(one.max_open * (1 + len(one.own_tools) // 4) for one in having))
    with ExitStack() as stack:
        agents = stack.enter_context(open_agents(config, settings, tokenizer, end_ids))
        lines += agents.lines
        for domain in settings:
            if domain.conversation is None or domain.key in agents.by_domain:
                continue
            partner, told = open_partner(config, domain, tokenizer, end_ids, stack)
            lines += told
            schemas[domain.key] = partner.schemas
            talks[domain.key] = talk_with(partner, domain)
        yield Conversations(talks, schemas, tokenizer=tokenizer, agents=agents, lines=tuple(lines))


def load_domains(
    config: RlConfig,
    settings: Sequence[DomainSettings],
    tokenizer: Tokenizer,
    context: int | None,
    split: Split,
    conversations: Conversations,
) -> dict[str, PromptSet]:
    """The prompts of the domains that are trained or evaluated, by name. They are added to the conversations. context:
    the model's, in tokens, or None if it is unlimited."""
    found = {}
    for one in used_domains(config, settings, split):
        prompts = load_prompt_set(config, one, tokenizer, context, split, conversations.offered(one.key))
        conversations.add(one.key, prompts, ChatFormat(one.chat, one.template_options))
        found[one.key] = prompts
    return {name: prompts for name, prompts in found.items() if prompts}


def talk_with(partner: ToolsAndEnvironment, domain: DomainSettings) -> Talk:
    """Conversation settings of a domain, with the partner that its policy talks to."""
    conversation = domain.conversation
    assert conversation is not None
    return Talk(
        partner,
        turns=conversation.max_turns,
        turn_tokens=conversation.max_turn_tokens,
        in_rounds=conversation.in_rounds,
        open=conversation.max_open,
    )


def open_partner(
    config: RlConfig, domain: DomainSettings, tokenizer: Tokenizer, end_ids: Sequence[int], stack: ExitStack
) -> tuple[ToolsAndEnvironment, Sequence[str]]:
    """Start the tools and the environment of a domain, which `stack` ends. Returns them, and lines for the user. Raises
    like `open_conversations`."""
    conversation, where = domain.conversation, domain.place("conversation")
    assert conversation is not None
    host = open_host(domain, stack)
    served, tool_limits = open_served_tools(conversation, config.sandbox, where, stack)
    own = () if host is None else host.schemas
    functions = zip((tool for tool in conversation.tools if not tool.is_served), own, strict=False)
    tool_limits |= {str(function_of(schema)["name"]): _limits(tool, conversation) for tool, schema in functions}
    schemas = (*own, *(schema for tools in served for schema in tools.schemas))
    _check_names(schemas, where)
    tokenizer = with_template(tokenizer, domain.chat_template)
    chat = ChatFormat("always", domain.template_options)
    parser, name = _parser(conversation, where, tokenizer, chat, schemas)
    stop = frozenset((*end_ids, *config.rollout.stop_token_ids))
    observations = ObservationFormat(Template(tokenizer, chat.options, schemas), stop)
    answers_text = host is not None and host.answers_text
    observers: list[Observer] = [*(("tool",) if schemas else ()), *(("user",) if answers_text else ())]
    rewriting = _rewriting(conversation, observations.template, observers, where)
    partner = ToolsAndEnvironment(
        host,
        served,
        parser,
        observations,
        HistoryEncoder(tokenizer, chat.options),
        PartnerLimits(
            open_seconds=conversation.open_timeout_seconds,
            call_seconds=conversation.call_timeout_seconds,
            result_characters=conversation.max_result_characters,
            prompt_tokens=domain.max_prompt_tokens,
            same_start=conversation.same_start,
            turns=conversation.max_turns,
            failed_fraction=config.scoring.max_failure_fraction,
        ),
        rewriting=rewriting,
        where=where,
        tool_limits=tool_limits,
    )
    return partner, _lines(conversation, where, schemas, name, rewriting)


def _check_names(schemas: Schemas, where: str) -> None:
    """Raise ConfigError for two tools of one name, since only one of them could be called."""
    names = [str(function_of(schema)["name"]) for schema in schemas]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{where} has two tools named {twice!r}",
            remedy="rename one of them, or leave one out: a model calls tools by name",
        )


def _rewriting(
    conversation: ConversationConfig, template: Template, observers: Sequence[Observer], where: str
) -> frozenset[Observer]:
    """Find observers whose messages make the chat template rewrite earlier turns. ConfigError if that is unwanted."""
    found = {observer: rewrites(template, observer, where=where) for observer in observers}
    rewriting = frozenset(observer for observer, what in found.items() if what)
    if not rewriting or conversation.trajectory == "fork":
        return rewriting
    observer = min(rewriting)
    remedy = f"set {where}.trajectory: fork, which gives each history its own row"
    if _is_mended_by_keeping_thinking(template, observers):
        remedy = (
            f"set model.chat_template: {KEEP_THINKING}, the same template without the part that leaves out thinking, "
            f"or {where}.trajectory: fork, which gives each history its own row"
        )
    raise ConfigError(
        f"{where}: the chat template writes {found[observer]} differently from what the policy was given and wrote, "
        f"once a message of the role {observer!r} follows",
        remedy=f"{remedy}; or name a template that leaves earlier turns as they are",
    )


def _is_mended_by_keeping_thinking(template: Template, observers: Sequence[Observer]) -> bool:
    changed = replace(template, tokenizer=with_template(template.tokenizer, KEEP_THINKING))
    try:
        return not any(rewrites(changed, one, where=KEEP_THINKING) for one in observers)
    except DataError:  # the changed template refuses what the original takes
        return False


def _parser(
    conversation: ConversationConfig, where: str, tokenizer: Tokenizer, chat: ChatFormat, schemas: Schemas
) -> tuple[ToolParser | None, str]:
    """Choose the parser of tool calls, and return it with its name. None and "" without tools."""
    if not schemas:
        return None, ""
    name = conversation.parser
    if name == AUTO_PARSER:
        name = recognise(renderer(tokenizer, chat.options, where))
    return find_parser(name), name


def _lines(
    conversation: ConversationConfig, where: str, schemas: Schemas, parser: str, rewriting: Collection[Observer]
) -> list[str]:
    """Lines for the user on a domain's conversations: partner, tools, turns, and what makes their numbers differ."""
    names = ", ".join(str(function_of(schema)["name"]) for schema in schemas)
    partner = [] if conversation.environment is None else [f"environment {conversation.environment}"]
    tools = [f"tools {names} (calls are read as {parser})"] if names else []
    lines = [f"{where}: {', '.join((*partner, *tools))}; at most {conversation.max_turns} turns"]
    if not conversation.in_rounds:
        lines.append(
            f"{where}: conversations go on as soon as they have an answer, so log-probabilities may differ in rounding "
            f"from run to run ({where}.in_rounds: true makes them equal)"
        )
    if rewriting:
        lines.append(
            f"{where}: after messages of the role {' or '.join(sorted(rewriting))} the chat template rewrites earlier "
            "turns; each rewrite begins a new row, which gets the score of the conversation"
        )
    return lines


Options = TypeVar("Options")


def open_served_tools(
    conversation: ConversationConfig, sandbox: SandboxConfig, where: str, stack: ExitStack
) -> tuple[list[ServedTools], dict[str, CallLimits]]:
    """The sandbox of `python`, and all MCP servers as one, closed with `stack`, and the limits of their tools. Raises
    ConfigError, SandboxError."""
    served: list[ServedTools] = []
    limits: dict[str, CallLimits] = {}
    servers: list[tuple[McpServer, ToolConfig]] = []
    for index, tool in enumerate(conversation.tools):
        field = f"{where}.tools.{index}"
        if tool.name == PYTHON_TOOL:
            at_once = len(os.sched_getaffinity(0)) if sandbox.url is None else REMOTE_AT_ONCE
            limits[tool.name] = _limits(tool, conversation, at_once, in_order=tool.options.get("state") == "kept")
            served.append(_python(tool, sandbox, conversation, field, limits[tool.name]))
            stack.callback(served[-1].close)
        elif tool.name == MCP_TOOL:
            servers.append((_server(tool, field), tool))
    if servers:
        tools = McpTools([server for server, _ in servers], start_seconds=conversation.start_timeout_seconds)
        stack.callback(tools.close)
        served.append(tools)
        for (_, tool), names in zip(servers, tools.names, strict=True):
            limits |= dict.fromkeys(names, _limits(tool, conversation))
    return served, limits


def _limits(
    tool: ToolConfig, conversation: ConversationConfig, at_once: int | None = None, *, in_order: bool = False
) -> CallLimits:
    """Limits of each call of the tool. at_once: number of concurrent calls if the run file does not set it."""
    seconds = tool.timeout_seconds or conversation.call_timeout_seconds
    return CallLimits(seconds, tool.concurrency or at_once or conversation.max_open, in_order)


def _python(
    tool: ToolConfig, sandbox: SandboxConfig, conversation: ConversationConfig, field: str, limits: CallLimits
) -> ServedTools:
    seconds = sandbox.seconds if tool.timeout_seconds is None else min(sandbox.seconds, 0.8 * tool.timeout_seconds)
    given = {"seconds": seconds, "memory_mb": sandbox.memory_mb, **tool.options}
    options = _options(PythonToolOptions, given, f"{field}: python")
    if options.seconds >= limits.seconds:
        raise ConfigError(
            f"{field}: python has {options.seconds:g} s for a call, and its time limit is {limits.seconds:g} s",
            remedy="raise timeout_seconds of the tool, or call_timeout_seconds, or lower its option seconds",
        )
    return open_python_tool(
        options,
        tier=sandbox.tier,
        url=sandbox.url,
        token=key_in(sandbox.token_variable, "sandbox.token_variable"),
        conversations=conversation.max_open,
        at_once=limits.at_once,
    )


def _server(tool: ToolConfig, field: str) -> McpServer:
    options = dict(tool.options)
    for name in ("command", "environment"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    return _options(McpServer, options, f"{field}: mcp")


def _options(kind: Callable[..., Options], given: dict[str, Any], what: str) -> Options:
    """ConfigError for an option that does not exist, or whose value is not of its type."""
    known = inspect.signature(kind, eval_str=True).parameters
    for name, value in given.items():
        if name not in known:
            remedy = did_you_mean(name, list(known), f"options: {', '.join(known)}")
            raise ConfigError(f"{what} has no option {name!r}", remedy=remedy)
        if wrong := why_not(known[name].annotation, value):
            raise ConfigError(f"{what}: option {name} is {value!r}", remedy=f"write {wrong}")
    return kind(**given)
