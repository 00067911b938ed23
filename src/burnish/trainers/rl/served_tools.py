"""From a run file to the tools that neither this process nor that of a conversation runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from burnish.config.names import MCP_TOOL, PYTHON_TOOL
from burnish.config.schema_conversation import ConversationConfig, ToolConfig
from burnish.config.schema_rl import SandboxConfig
from burnish.environments.mcp_tools import McpServer, McpTools
from burnish.environments.python_tool import PythonToolOptions, open_python_tool
from burnish.errors import ConfigError
from burnish.tools.served import ServedTools
from burnish.words import did_you_mean

Options = TypeVar("Options")


def open_served_tools(
    conversation: ConversationConfig, sandbox: SandboxConfig, where: str, stack: ExitStack
) -> list[ServedTools]:
    """The sandbox of `python`, and all MCP servers as one, closed with `stack`. Raises ConfigError, SandboxError."""
    served: list[ServedTools] = []
    servers: list[McpServer] = []
    for index, tool in enumerate(conversation.tools):
        field = f"{where}.tools.{index}"
        if tool.name == PYTHON_TOOL:
            served.append(_python(tool, sandbox, conversation, field))
            stack.callback(served[-1].close)
        elif tool.name == MCP_TOOL:
            servers.append(_server(tool, field))
    if servers:
        served.append(McpTools(servers, start_seconds=conversation.start_timeout_seconds))
        stack.callback(served[-1].close)
    return served


def _python(tool: ToolConfig, sandbox: SandboxConfig, conversation: ConversationConfig, field: str) -> ServedTools:
    given = {"seconds": sandbox.seconds, "memory_mb": sandbox.memory_mb, **tool.options}
    options = _options(PythonToolOptions, given, f"{field}: python")
    if options.seconds >= conversation.call_timeout_seconds:
        raise ConfigError(
            f"{field}: python has {options.seconds:g} s for a call, and call_timeout_seconds ends it after "
            f"{conversation.call_timeout_seconds:g} s",
            remedy="raise call_timeout_seconds, or lower its option seconds",
        )
    token = None
    if sandbox.token_variable is not None:
        token = os.environ.get(sandbox.token_variable, "").strip()
        if not token:
            raise ConfigError(
                f"sandbox.token_variable names {sandbox.token_variable}, which is not set",
                remedy="set it where the run is started",
            )
    return open_python_tool(
        options, tier=sandbox.tier, url=sandbox.url, token=token, conversations=conversation.max_open
    )


def _server(tool: ToolConfig, field: str) -> McpServer:
    options = dict(tool.options)
    for name in ("command", "environment"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    return _options(McpServer, options, f"{field}: mcp")


def _options(kind: Callable[..., Options], given: dict[str, Any], what: str) -> Options:
    """ConfigError for an option that does not exist."""
    known: Sequence[str] = list(inspect.signature(kind).parameters)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"{what} has no option {name!r}", remedy=f"{hint} options: {', '.join(known)}".lstrip())
    return kind(**given)
