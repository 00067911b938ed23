"""Classes whose public methods are tools: the form of TRL's `environment_factory`, unchanged."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any

from burnish.agents.environments.instance import Instance, Maker
from burnish.agents.environments.protocol import Step
from burnish.agents.environments.values import checked_step, number_of
from burnish.agents.tools.schema import schema_of
from burnish.errors import ConfigError, EnvironmentFailedError
from burnish.outside.plugins import calling_outside
from burnish.types import Json

NO_TOOLS = ("reset", "get_reward", "close")
"""Public methods that are not tools. (For TRL, `close` is one.)"""


def public_methods(kind: type) -> list[str]:
    """Names of the methods that do not begin with `_`, in the order of TRL. Properties and classmethods are none."""
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


class ToolClassSource:
    """Environments of a class whose public methods are tools.

    kind: the class of the objects that `maker` makes. wanted: how messages about it begin. Raises ConfigError if it has
    no `reset`, or a method that cannot be shown to a model (`burnish.agents.tools.schema.schema_of`).
    """

    answers_text = False

    def __init__(self, maker: Maker, kind: type, wanted: str) -> None:
        methods = public_methods(kind)
        if "reset" not in methods:
            raise ConfigError(f"{wanted}, which has no method reset", remedy="add reset(self, **row)")
        self._maker = maker
        tools = [name for name in methods if name not in NO_TOOLS]
        self._names = frozenset(tools)
        self.schemas: tuple[Mapping[str, Json], ...] = tuple(_schema(kind, name, wanted) for name in tools)

    def start(self, row: Mapping[str, Json], seed: int) -> ToolClass:
        """A new object, after its `reset`."""
        environment = ToolClass(self._maker.make(seed), self._maker.name, self._names)
        with environment.closed_if_it_fails():
            environment.begin(row, seed)
        return environment


class ToolClass(Instance):
    """An object whose methods `tools` are called by their names."""

    def __init__(self, thing: Any, name: str, tools: frozenset[str]) -> None:
        super().__init__(thing, name)
        self._tools = tools

    def call(self, name: str, arguments: Mapping[str, Json]) -> object:
        """Call a method. An asynchronous one runs when what it returns is awaited."""
        if name not in self._tools:
            raise EnvironmentFailedError(f"the environment {self._name} has no tool {name!r}")
        result = getattr(self._thing, name)(**arguments)
        return self._later(result, name) if inspect.isawaitable(result) else self._result(result, name)

    def step(self, text: str) -> Step:
        """Never called: a turn without a call is the last one."""
        raise EnvironmentFailedError(f"the environment {self._name} answers calls of its tools, not texts")

    def ended(self) -> bool:
        """Return whether the object's `done` is true, or a tool returned a `Step` that ended it."""
        done = self._attribute("done")
        return super().ended() or (not callable(done) and bool(done))

    def reward(self) -> float | None:
        """`get_reward()`, or the attribute `reward`, where TRL's examples keep it, or the sum of the turns' rewards."""
        kept = self._attribute("reward")
        if kept is None or callable(kept) or callable(getattr(self._thing, "get_reward", None)):
            return super().reward()
        return number_of(kept, f"the attribute reward of the environment {self._name}")

    def _attribute(self, name: str) -> object:
        with calling_outside(f"the attribute {name} of the environment {self._name}", EnvironmentFailedError):
            return getattr(self._thing, name, None)

    async def _later(self, result: Awaitable[object], name: str) -> object:
        return self._result(await self._loop.run(result), name)

    def _result(self, result: object, name: str) -> object:
        if not isinstance(result, Step):
            return result
        return self._noted(checked_step(result, f"what {name} of the environment {self._name} returned"))


def _schema(kind: type, name: str, wanted: str) -> Mapping[str, Json]:
    is_static = isinstance(inspect.getattr_static(kind, name), staticmethod)
    try:
        return schema_of(getattr(kind, name), name=name, method=not is_static)
    except ConfigError as error:
        raise ConfigError(
            f"{wanted}, whose public methods are its tools, but {error.message}",
            remedy=f"{error.remedy}; if it is not for the model, begin its name with _",
        ) from error
