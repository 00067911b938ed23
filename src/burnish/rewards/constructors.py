"""Rewards written in Python: one function for each built-in, for reward models and for functions of your own.

Each takes the reward's own options by name, and the settings of every reward: `weight` in the sum (or `audit`, to log
it only), `label` in the logs, `timeout_seconds` for one response, `environment`, the names of variables that it may
see, and `domains` whose responses it scores. A reward that runs in workers also takes `concurrency`, the most responses
scored at once. The result goes into the `rewards` of `burnish.train`; `.weighted(0.5)` gives the same reward with
another weight.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from burnish.config.names import IN_MEMORY, MODEL_REWARD
from burnish.errors import ConfigError, suggestion
from burnish.rewards.registry import BUILT_INS

if TYPE_CHECKING:
    from typing import Unpack

    from burnish.config.schema import RewardConfig


class Settings(TypedDict, total=False):
    """Settings of every reward besides its own options; see `burnish.config.schema.RewardConfig`."""

    weight: float
    audit: bool
    label: str | None
    timeout_seconds: float
    environment: Sequence[str]
    domains: str | Sequence[str]


class WorkerSettings(Settings, total=False):
    """Settings of a reward that runs in workers."""

    concurrency: int | None


@dataclass(frozen=True, slots=True)
class FunctionReward:
    """A function of this program as a reward. `config` is its entry in the run's configuration."""

    call: Callable[..., Any]
    config: RewardConfig

    def weighted(self, weight: float) -> FunctionReward:
        """The same reward with another weight in the sum."""
        return replace(self, config=self.config.weighted(weight))


class Constructor:
    """A built-in reward as a function that takes its options, by name or in their order, and `WorkerSettings`."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__doc__ = BUILT_INS[name].summary

    @property
    def __signature__(self) -> inspect.Signature:
        given = inspect.Parameter.POSITIONAL_OR_KEYWORD
        options = [
            option.replace(kind=given, annotation=option.annotation.__origin__)
            for option in BUILT_INS[self.__name__].parameters().values()
        ]
        return inspect.Signature([*options, inspect.Parameter("settings", inspect.Parameter.VAR_KEYWORD)])

    def __call__(self, *values: object, **given: object) -> RewardConfig:
        signature = self.__signature__
        options = signature.bind(*values, **given).arguments
        settings = cast("WorkerSettings", options.pop("settings", {}))
        for name in settings.keys() - WorkerSettings.__optional_keys__:
            known = [*list(signature.parameters)[:-1], *sorted(WorkerSettings.__optional_keys__)]
            raise ConfigError(f"the reward {self.__name__} has no option {name!r}", remedy=suggestion(name, known))
        return _reward(self.__name__, options, settings)


math = Constructor("math")
exact = Constructor("exact")
regex = Constructor("regex")
format = Constructor("format")
length = Constructor("length")
overlong = Constructor("overlong")
repetition = Constructor("repetition")
environment = Constructor("environment")
code = Constructor("code")
reasoning_gym = Constructor("reasoning_gym")
choice = Constructor("choice")
instructions = Constructor("instructions")
json_schema = Constructor("json_schema")
command = Constructor("command")
judge = Constructor("judge")


def model(
    path: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    tokens_per_microbatch: int | None = None,
    **settings: Unpack[Settings],
) -> RewardConfig:
    """The score of a reward model: a folder, or a run of `burnish rm` (`runs/rm`, `runs/rm@best`)."""
    options = {"device": device, "dtype": dtype, "tokens_per_microbatch": tokens_per_microbatch}
    return _reward(f"{MODEL_REWARD}{path}", options, settings)


def function(
    call: Callable[..., Any], *, options: dict[str, Any] | None = None, **settings: Unpack[WorkerSettings]
) -> FunctionReward:
    """A function of this program, or any object that can be called by parameter name (docs/rewards.md), with its own
    weight or label. `options` are arguments of every call."""
    return FunctionReward(call, _reward(f"{IN_MEMORY}{name_of(call)}", options or {}, settings))


def name_of(call: Callable[..., Any]) -> str:
    """Name of a function in logs and configurations: letters, digits and underscores."""
    own = str(getattr(call, "__name__", type(call).__name__))
    return "".join(c if c.isalnum() else "_" for c in own).strip("_") or "function"


def _reward(name: str, options: dict[str, Any], settings: Settings) -> RewardConfig:
    """Build a reward's configuration, without options that are None. ConfigError for settings that are invalid."""
    from pydantic import ValidationError

    from burnish.config.explain import explain
    from burnish.config.problems import raise_problems
    from burnish.config.schema import RewardConfig

    given = {
        key: list(value) if isinstance(value, tuple) else value for key, value in options.items() if value is not None
    }
    data = {"name": name, "options": given, **settings}
    try:
        return RewardConfig.model_validate(data)
    except ValidationError as error:
        problems = [replace(p, message=f"{p.field} {p.message}") for p in explain(error, RewardConfig, data, {})]
        raise_problems(problems, source=f"the reward {name}")
        raise
