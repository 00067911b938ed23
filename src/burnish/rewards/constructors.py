"""Rewards written in Python: one function for each built-in, for reward models and for functions of your own.

Each takes the reward's own options by name, and what every reward has: `weight` in the sum, `label` in the logs,
`timeout_seconds` for one response, and `environment`, the names of variables that it may see. What they return goes
into the `rewards` of `burnish.train`; `.weighted(0.5)` gives the same reward with another weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from burnish.config.names import IN_MEMORY, MODEL_REWARD

if TYPE_CHECKING:
    from typing import Unpack

    from burnish.config.schema import RewardConfig


class Settings(TypedDict, total=False):
    """What every reward has besides its own options; see `burnish.config.schema.RewardConfig`."""

    weight: float
    label: str | None
    timeout_seconds: float
    environment: Sequence[str]


@dataclass(frozen=True, slots=True)
class FunctionReward:
    """A function of this program as a reward. `config` is how the run's configuration names it."""

    call: Callable[..., Any]
    config: RewardConfig

    def weighted(self, weight: float) -> FunctionReward:
        """The same reward with another weight in the sum."""
        return replace(self, config=self.config.weighted(weight))


def math(*, require: Literal["any", "boxed", "hash", "phrase"] = "any", **settings: Unpack[Settings]) -> RewardConfig:
    """1 when the final answer equals the gold answer mathematically, else 0. `require`: where it must stand."""
    return _reward("math", {"require": require}, settings)


def exact(*, strip: bool = True, ignore_case: bool = False, **settings: Unpack[Settings]) -> RewardConfig:
    """1 when the response equals the answer as text, else 0."""
    return _reward("exact", {"strip": strip, "ignore_case": ignore_case}, settings)


def regex(pattern: str, *, full: bool = False, **settings: Unpack[Settings]) -> RewardConfig:
    """1 when the pattern is found in the response (`full`: matches all of it), else 0."""
    return _reward("regex", {"pattern": pattern, "full": full}, settings)


def format(  # the name that a run file has for it
    tags: Sequence[str] = ("think", "answer"), *, opened: bool = False, **settings: Unpack[Settings]
) -> RewardConfig:
    """1 when the response consists of these tags in their order, each once and filled, else 0. `opened`: the prompt
    ends with the first opening tag."""
    return _reward("format", {"tags": tags if isinstance(tags, str) else list(tags), "opened": opened}, settings)


def length(
    *,
    target: int | None = None,
    maximum: int | None = None,
    unit: Literal["tokens", "words", "characters"] = "tokens",
    **settings: Unpack[Settings],
) -> RewardConfig:
    """Closeness to a `target` length (1 at it, 0 at nothing or twice of it), or 1 up to a `maximum`, else 0."""
    return _reward("length", {"target": target, "maximum": maximum, "unit": unit}, settings)


def overlong(max_tokens: int, buffer_tokens: int, **settings: Unpack[Settings]) -> RewardConfig:
    """0 up to max_tokens - buffer_tokens tokens, from there linearly down to -1 at max_tokens."""
    return _reward("overlong", {"max_tokens": max_tokens, "buffer_tokens": buffer_tokens}, settings)


def repetition(*, n: int = 3, unit: Literal["words", "tokens"] = "words", **settings: Unpack[Settings]) -> RewardConfig:
    """Minus the fraction of n-grams that repeat an earlier one: 0 for none, towards -1 for a loop."""
    return _reward("repetition", {"n": n, "unit": unit}, settings)


def code(
    *,
    score: Literal["all", "fraction"] = "all",
    tier: Literal["auto", "namespaces", "landlock", "process"] = "auto",
    seconds: float = 6.0,
    memory_mb: int = 512,
    **settings: Unpack[Settings],
) -> RewardConfig:
    """1 when the program in the response passes all tests of its row (`fraction`: the share that it passes), run in the
    sandbox. `seconds` is for all tests of a response together."""
    return _reward("code", {"score": score, "tier": tier, "seconds": seconds, "memory_mb": memory_mb}, settings)


def sentiment(
    *, part: Literal["all", "ending"] = "all", sentences: int = 2, **settings: Unpack[Settings]
) -> RewardConfig:
    """VADER sentiment of the response (`ending`: of its last sentences), from -1 to 1. Needs `burnish[sentiment]`."""
    return _reward("sentiment", {"part": part, "sentences": sentences}, settings)


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
    call: Callable[..., Any], *, options: dict[str, Any] | None = None, **settings: Unpack[Settings]
) -> FunctionReward:
    """A function of this program, or any object that can be called by parameter name (docs/rewards.md), with a weight
    or a label of its own. `options` are arguments that it always gets."""
    return FunctionReward(call, _reward(f"{IN_MEMORY}{name_of(call)}", options or {}, settings))


def name_of(call: Callable[..., Any]) -> str:
    """What a function is called in logs and configurations: letters, digits and underscores."""
    own = str(getattr(call, "__name__", type(call).__name__))
    return "".join(c if c.isalnum() else "_" for c in own).strip("_") or "function"


def _reward(name: str, options: dict[str, Any], settings: Settings) -> RewardConfig:
    """Options that are None are left to the reward. ConfigError for settings that no reward can have."""
    from pydantic import ValidationError

    from burnish.config.explain import explain
    from burnish.config.problems import raise_problems
    from burnish.config.schema import RewardConfig

    given = {key: value for key, value in options.items() if value is not None}
    data = {"name": name, "options": given, **settings}
    try:
        return RewardConfig.model_validate(data)
    except ValidationError as error:
        problems = [replace(p, message=f"{p.field} {p.message}") for p in explain(error, RewardConfig, data, {})]
        raise_problems(problems, source=f"the reward {name}")
        raise
