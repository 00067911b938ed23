"""The sections `rollout` and `conversation` of a run file of `burnish rl`; see `burnish.config.schema`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from burnish.config import names
from burnish.config.section import (
    Count,
    NamedPlace,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Seconds,
    Section,
    Temperature,
    VariableName,
    as_list,
)


class ToolConfig(Section):
    """A tool that the policy may call."""

    name: PathText
    """`calculator`, `python`, `mcp` (all tools of a server), `path/to/file.py:function` or `package.module:function`
    (docs/tools.md)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `python` and `mcp`."""
    timeout_seconds: Seconds | None = None
    """Time limit for each call, counted from its start. `null`: `call_timeout_seconds`."""
    concurrency: Annotated[int, Field(ge=1, le=4_096)] | None = None
    """Most calls of the tool (for `mcp`, of each tool of the server) to run at once; others wait. `null`: `max_open`;
    for `python`, one per processor, or 16 with `sandbox.url`."""

    @property
    def is_served(self) -> bool:
        """True if the tool is not a function, but run by a sandbox or a server."""
        return self.name in names.SERVED_TOOLS


def _tool_shorthand(value: object) -> object:
    """`calculator`, or `{python: {state: kept, timeout_seconds: 20}}`."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict) and len(value) == 1 and not value.keys() & ToolConfig.model_fields.keys():
        ((name, options),) = value.items()
        if not isinstance(options, dict):
            return {"name": name, "options": {} if options is None else options}
        limits = {key: options[key] for key in ("timeout_seconds", "concurrency") if key in options}
        return {"name": name, "options": {k: v for k, v in options.items() if k not in limits}, **limits}
    return value


Tool = Annotated[ToolConfig, BeforeValidator(_tool_shorthand)]


class ConversationConfig(Section):
    """Responses of several turns: the policy may call tools or talk to an environment (docs/agents.md).

    `max_response_tokens` limits all turns and answers together.
    """

    tools: Annotated[tuple[Tool, ...], BeforeValidator(as_list)] = ()
    """Tools: a name, a section (`name`, `options`, `timeout_seconds`, `concurrency`; docs/tools.md), or a list of
    them."""
    environment: PathText | None = None
    """Environment that answers: `path/to/file.py:Class`, `package.module:Class`, `gym:ID` or `openenv:URL`
    (docs/environments.md)."""
    environment_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    agent: PathText | None = None
    """Program that conducts the conversation through an OpenAI-compatible endpoint and returns the reward:
    `path/to/file.py:function`, `package.module:function`, or `command:` followed by a command line
    (docs/serving.md)."""
    agent_options: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the agent's function."""
    agent_settings: Literal["refuse", "ignore"] = "refuse"
    """Handling of sampling settings in an agent's request that differ from the run's, such as a temperature."""
    parser: PathText = names.AUTO_PARSER
    """Format of the policy's tool calls: `hermes`, `qwen_xml`, `llama_json`, `pythonic`, `path/to/file.py:Class`, or
    `auto` for the format of its chat template."""
    trajectory: Literal["append", "fork"] = "append"
    """Handling of a chat template that rewrites earlier turns once others follow: `append` refuses it, `fork` starts a
    new row with the new history. All rows of a conversation get its score."""
    max_turns: Count = 8
    """Most turns of the policy in a response."""
    max_turn_tokens: PositiveInt | None = None
    """Longest turn of the policy. `null`: only `max_response_tokens` limits it."""
    max_result_characters: Annotated[int, Field(ge=64, le=10_000_000)] = 4_000
    """Longest text that a tool or environment may return at once. The rest is cut off, and the policy is told so."""
    max_open: Count = 256
    """Most conversations held at once. With an environment, each has its own process."""
    in_rounds: bool = False
    """Wait for all answers before sampling the next turns, so that a run's numbers do not depend on the speed of its
    tools. Otherwise each conversation continues as soon as it has its answer."""
    same_start: bool = True
    """Give all environments of a group the same seed, so that its responses are compared on the same task."""
    call_timeout_seconds: Seconds = 30.0
    """Time limit for each call of a tool, counted from its start, or for one step of an environment."""
    open_timeout_seconds: Seconds = 60.0
    """Time limit for an environment to start its task, and for it to return its reward."""
    start_timeout_seconds: Seconds = 60.0
    """Time limit for importing tools and environment, once per run."""
    variables: Annotated[tuple[VariableName, ...], BeforeValidator(as_list)] = ()
    """Environment variables that tools and environments can read, in addition to the harmless ones that are always
    passed on (docs/rewards.md)."""

    @property
    def own_tools(self) -> tuple[str, ...]:
        """The tools that are functions."""
        return tuple(tool.name for tool in self.tools if not tool.is_served)

    def named_places(self, section: str) -> Iterator[NamedPlace]:
        """The code of tools, environment, agent and parser."""
        for index, tool in enumerate(self.tools):
            if not tool.is_served:
                yield NamedPlace(f"{section}.tools.{index}", tool.name, "code")
        if self.environment is not None:
            yield NamedPlace(f"{section}.environment", self.environment, "code")
        if self.agent is not None:
            yield NamedPlace(f"{section}.agent", self.agent, "code")
        yield NamedPlace(f"{section}.parser", self.parser, "code")


class VllmConfig(Section):
    """The process in which `rollout.engine: vllm` samples."""

    python: PathText | None = None
    """Python interpreter that has vLLM, for example `envs/vllm/bin/python`. `null`: the one that runs Burnish."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `vllm.LLM` that Burnish does not set itself, for example `{gpu_memory_utilization: 0.4}` if training
    uses the same GPU, `{enforce_eager: true}`, or a `dtype` other than the model's. With `tensor_parallel_size: N`,
    each rollout worker uses N GPUs (docs/cluster.md)."""
    start_timeout_seconds: Seconds = 600.0
    """Time limit for vLLM to start, and for it to receive each piece of the weights."""
    call_timeout_seconds: Seconds = 1800.0
    """Time limit for the responses of one call. After that the process is considered dead and is restarted."""

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable


class RolloutConfig(Section):
    """Prompts and responses of a step, sampling settings, and the engine."""

    prompts_per_step: Count = 32
    """Prompts (not responses) in one step, over all workers."""
    group_size: Count = 8
    """Responses per prompt; a step has prompts_per_step x group_size responses."""
    max_prompt_tokens: PositiveInt = 512
    """Longest prompt, in tokens; see `data.over_long`."""
    max_response_tokens: PositiveInt = 512
    """Longest response, in tokens."""
    temperature: Temperature = 1.0
    """Sampling temperature. The trainer's log-probabilities use it too."""
    top_k: NonNegativeInt = 0
    """Sample only from the k most likely tokens. 0 is off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample only from the smallest set of tokens with at least this probability in total. 1 is off."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Drop tokens with less than this fraction of the most likely token's probability. 0 is off."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a response (and stay in it)."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """Token ids that end a response, in addition to the model's own end-of-sequence ids."""
    ignore_eos: bool = False
    """Continue past the model's end-of-sequence tokens, so that every response has exactly max_response_tokens tokens
    (2019 style, https://arxiv.org/abs/1909.08593). Only `stop` and `stop_token_ids` can then end a response earlier."""
    engine: str = "local"
    """`local` (samples with the training weights themselves), `vllm` (a separate process, see docs/engines.md),
    `package.module:Class` or `path/to/file.py:Class`."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of your own engine class, by name."""
    max_batch_rows: PositiveInt = 256
    """Most responses decoded at once; others wait."""
    vllm: VllmConfig = VllmConfig()
    """Settings of `engine: vllm`."""
