"""Agents: functions and commands that talk to the policy over HTTP and say what the conversation is worth.

For the process that runs one, an agent is an environment without tools whose reward takes the whole conversation.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from burnish.agents.environments.instance import OwnLoop, check_options, reset_arguments
from burnish.agents.environments.protocol import Opening, Step
from burnish.agents.environments.values import number_of
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.outside.plugins import calling_outside, describe_exit, find_callable
from burnish.outside.supervise import run_program
from burnish.types import Json

COMMAND = "command:"
"""Before the words of a command, where a function is named otherwise."""
_SHOWN_CHARACTERS = 500


@dataclass(slots=True)
class AgentSource:
    """`EnvironmentSource` of agents. run: gets the row, with `base_url`, `api_key`, `model` and `messages`."""

    name: str
    run: Callable[[Mapping[str, Json], int], object]
    schemas: tuple[Mapping[str, Json], ...] = ()
    answers_text: bool = False

    def start(self, row: Mapping[str, Json], seed: int) -> _Agent:
        return _Agent(self, row, seed)


class _Agent:
    """`Environment` that does everything when it is asked for its reward."""

    opening: Opening = None

    def __init__(self, source: AgentSource, row: Mapping[str, Json], seed: int) -> None:
        self._source = source
        self._row = row
        self._seed = seed
        self._loop = OwnLoop()

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        raise EnvironmentFailedError(f"an agent has no tool {name!r}")

    def step(self, text: str) -> Step:
        raise EnvironmentFailedError("an agent answers no turns")

    def ended(self) -> bool:
        return False

    def reward(self) -> float | None:
        """Run the agent. None if it has told the endpoint what it pays, or pays nothing."""
        what = f"the agent {self._source.name}"
        with calling_outside(what, EnvironmentFailedError):
            value = self._loop.settle(self._source.run(self._row, self._seed))
        return None if value is None else number_of(value, f"what {what} returned")

    def close(self) -> None:
        self._loop.stop()


def _words_of(command: str, wanted: str) -> list[str]:
    """The program and its arguments. ConfigError if they cannot be told apart, or no such program is found."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{wanted}, whose words cannot be told apart: {error}", remedy="close the quotes") from error
    if not words:
        raise ConfigError(f"{wanted}, which names no command", remedy="write the command after `command:`")
    if shutil.which(words[0]) is None:
        raise ConfigError(
            f"{wanted}, but the program {words[0]!r} was not found",
            remedy="check the spelling and the PATH, or write its path",
        )
    return words


def find_agent(name: str, options: Mapping[str, Json], wanted: str) -> AgentSource:
    """The agent that a run file names: `path/to/file.py:function`, `package.module:function`, or `command:` and the
    words of a command. options: further keyword arguments of the function. ConfigError if it cannot be used."""
    if name.startswith(COMMAND):
        words = _words_of(name.removeprefix(COMMAND), wanted)
        if options:
            raise ConfigError(f"{wanted}, which has no options", remedy="write them as words of the command")
        return AgentSource(name, lambda row, seed: _run_command(words, row, seed))
    function = find_callable(name, "function", wanted, others=f"{COMMAND}WORDS", remedy="name a function")
    check_options(function, options, wanted, all_of_them=False)

    def run(row: Mapping[str, Json], seed: int) -> object:
        given = reset_arguments(function, row, seed, f"the agent {name}", without=tuple(options))
        return function(**{**given, **options})

    return AgentSource(name, run)


def _run_command(words: list[str], row: Mapping[str, Json], seed: int) -> float | None:
    """Run the command with the row as JSON on its standard input, and what OpenAI's clients read in its environment.
    The last line that it writes is the reward; nothing if it writes nothing."""
    variables = {
        **os.environ,
        "OPENAI_BASE_URL": str(row["base_url"]),
        "OPENAI_API_KEY": str(row["api_key"]),
        "OPENAI_MODEL": str(row["model"]),
    }
    # It has the time of its conversation, whose process is ended with all that it started.
    given = json.dumps({**row, "seed": seed}, default=str).encode()
    done = run_program(words, seconds=None, given=given, stderr=None, environment=variables)
    if done.returncode:
        raise EnvironmentFailedError(f"the command ended with {describe_exit(done.returncode)}")
    lines = done.stdout.decode().strip().splitlines()
    if not lines:
        return None
    try:
        return float(lines[-1])
    except ValueError:
        shown = lines[-1][:_SHOWN_CHARACTERS]
        raise EnvironmentFailedError(f"the last line of the command is {shown!r}, not a reward") from None
