"""A wrapper that makes an object of a user's class an environment: what all kinds of classes have in common."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.agents.environments.protocol import Opening, Step
from burnish.agents.environments.values import number_of, opening_of
from burnish.errors import ConfigError, EnvironmentFailedError, did_you_mean
from burnish.outside.plugins import calling_outside
from burnish.types import Json


@dataclass(frozen=True, slots=True)
class Maker:
    """Constructor of objects with its options. name: of the environment in the run file, for messages."""

    name: str
    call: Callable[..., object]
    options: Mapping[str, Json] = field(default_factory=dict)

    def make(self, seed: int) -> Any:
        """A new object. `random` and `numpy.random` are seeded before, so that a group starts equal even where neither
        the constructor nor `reset` takes a seed."""
        seed_random(seed)
        with calling_outside(f"making the environment {self.name}", EnvironmentFailedError):
            return self.call(**self.options)

    def class_made(self, wanted: str) -> type:
        """Make one object, and close it, to learn its class. ConfigError, which begins with `wanted`, if that fails."""
        with calling_outside(f"{wanted}, but calling it", ConfigError):
            trial = self.call(**self.options)
        Instance(trial, self.name).close()
        return type(trial)


def seed_random(seed: int) -> None:
    """Seed the random numbers that all code of a process shares."""
    random.seed(seed)
    np.random.seed(seed)


class Instance:
    """An object and what it has paid so far. A base for environments, which add `call` and `step`."""

    opening: Opening = None

    def __init__(self, thing: Any, name: str) -> None:
        self._thing = thing
        self._name = name
        self._loop = OwnLoop()
        self._turn_rewards: list[float] = []
        self._ended = False

    def begin(self, row: Mapping[str, Json], seed: int, *, without: Sequence[str] = ()) -> None:
        """Call `reset` with columns of the row, except for the columns in `without`."""
        what = f"reset of the environment {self._name}"
        given = reset_arguments(self._thing.reset, row, seed, what, without=without)
        returned = self._asked("reset", self._thing.reset, **given)
        self.opening = self.read_opening(returned, f"what {what} returned")

    def read_opening(self, returned: Any, what: str) -> Opening:
        """Read the result of `reset`."""
        return opening_of(returned, what)

    def ended(self) -> bool:
        """Return whether a step or a result has said that nothing can follow."""
        return self._ended

    def reward(self) -> float | None:
        """Return the result of `get_reward`, or else the sum of the rewards of turns. None if there is neither."""
        get_reward = getattr(self._thing, "get_reward", None)
        if callable(get_reward):
            value = self._asked("get_reward", get_reward)
            return None if value is None else number_of(value, f"get_reward of {self._name}")
        return sum(self._turn_rewards) if self._turn_rewards else None

    def close(self) -> None:
        """Call `close`, if there is one."""
        try:
            close = getattr(self._thing, "close", None)
            if callable(close):
                self._asked("close", close)
        finally:
            self._loop.stop()

    @contextlib.contextmanager
    def closed_if_it_fails(self) -> Iterator[None]:
        """Close an object that fails to begin, and report that failure rather than one of `close`."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(EnvironmentFailedError):
                self.close()
            raise

    def _asked(self, what: str, function: Callable[..., object], /, *given: object, **arguments: object) -> Any:
        """Call the object, and await its answer if needed. Whatever it raises becomes an error that names the line."""
        with calling_outside(f"{what} of the environment {self._name}", EnvironmentFailedError):
            return self._loop.settle(function(*given, **arguments))

    def _noted(self, step: Step) -> Step:
        if step.reward is not None:
            self._turn_rewards.append(step.reward)
        self._ended = self._ended or step.ended
        return step


def reset_arguments(
    reset: Callable[..., object], row: Mapping[str, Json], seed: int, what: str, *, without: Collection[str] = ()
) -> dict[str, Json]:
    """Choose the arguments of a `reset`, or of an agent: every column of the row if it has `**kwargs`, otherwise the
    columns that it names, and `seed` if it names it and the row has no such column. Columns in `without` are kept back.
    what: is called, for messages."""
    parameters = inspect.signature(reset).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {parameter.name: parameter for parameter in parameters if parameter.kind in by_name}
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    offered: dict[str, Json] = {column: value for column, value in row.items() if column not in without}
    if "seed" in named:
        offered.setdefault("seed", seed)
    for parameter in named.values():
        if parameter.default is parameter.empty and parameter.name not in offered:
            raise EnvironmentFailedError(
                f"{what} needs {parameter.name!r}, which the row does not have",
                remedy=did_you_mean(parameter.name, row, f"columns of the row: {', '.join(row) or 'none'}"),
            )
    return {column: value for column, value in offered.items() if takes_all or column in named}


def check_options(call: Callable[..., object], options: Mapping[str, Json], wanted: str, *, all_of_them: bool) -> None:
    """ConfigError if a class or a function does not take these options. all_of_them: it is called with nothing else."""
    try:
        signature = inspect.signature(call)
    except ValueError:  # of some classes written in C; they say themselves what is wrong
        return
    try:
        (signature.bind if all_of_them else signature.bind_partial)(**options)
    except TypeError as error:
        names = ", ".join(signature.parameters) or "no options"
        raise ConfigError(
            f"{wanted}, which cannot be called with the options {dict(options)}: {error}", remedy=f"it takes {names}"
        ) from error


class OwnLoop:
    """A loop in its own thread, which starts when it is first needed: for asynchronous methods and tools.

    Clients for HTTP and databases belong to the loop in which they were first used. Everything that an environment or
    the tools of a process await runs in this one, whether or not the caller has its own loop.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def settle(self, value: object) -> object:
        """The value, or its result if it is awaitable. Waits as long as that takes: the process has a time limit."""
        if not inspect.isawaitable(value):
            return value
        return asyncio.run_coroutine_threadsafe(_awaited(value), self._started()).result()

    async def run(self, value: Awaitable[object]) -> object:
        """The same for callers with their own loop, which goes on meanwhile."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(value), self._started()))

    def stop(self) -> None:
        """End the thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:  # calls of one turn come from several threads
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="awaiting", daemon=True).start()
            return self._loop


async def _awaited(value: Awaitable[object]) -> object:
    try:
        return await value
    except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop, and callers would wait forever
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
