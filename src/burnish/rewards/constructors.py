"""Rewards written in Python: one function for each built-in, for reward models and for functions of your own.

Each takes the reward's own options by name, and what every reward has: `weight` in the sum (or `audit`, to be watched
only), `label` in the logs, `timeout_seconds` for one response, `environment`, the names of variables that it may see,
and `domains`, those whose responses it scores. Those that run in workers also take `concurrency`, the most responses
scored at once. What they return goes into the `rewards` of `burnish.train`; `.weighted(0.5)` gives the same reward with
another weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from burnish.config.names import IN_MEMORY, MODEL_REWARD

if TYPE_CHECKING:
    from typing import Unpack

    from burnish.config.schema import RewardConfig


class Settings(TypedDict, total=False):
    """What every reward has besides its own options; see `burnish.config.schema.RewardConfig`."""

    weight: float
    audit: bool
    label: str | None
    timeout_seconds: float
    environment: Sequence[str]
    domains: str | Sequence[str]


class WorkerSettings(Settings, total=False):
    """What a reward that runs in workers has."""

    concurrency: int | None


@dataclass(frozen=True, slots=True)
class FunctionReward:
    """A function of this program as a reward. `config` is how the run's configuration names it."""

    call: Callable[..., Any]
    config: RewardConfig

    def weighted(self, weight: float) -> FunctionReward:
        """The same reward with another weight in the sum."""
        return replace(self, config=self.config.weighted(weight))


def math(
    *, require: Literal["any", "boxed", "hash", "phrase"] = "any", **settings: Unpack[WorkerSettings]
) -> RewardConfig:
    """1 when the final answer equals the gold answer mathematically, else 0. `require`: where it must stand."""
    return _reward("math", {"require": require}, settings)


def exact(*, strip: bool = True, ignore_case: bool = False, **settings: Unpack[Settings]) -> RewardConfig:
    """1 when the response equals the answer as text, else 0."""
    return _reward("exact", {"strip": strip, "ignore_case": ignore_case}, settings)


def environment(*, by_turn: bool = False, **settings: Unpack[WorkerSettings]) -> RewardConfig:
    """What the environment of a conversation pays for it; with `by_turn`, each turn's part on the turn's last token."""
    return _reward("environment", {"by_turn": by_turn}, settings)


def regex(pattern: str, *, full: bool = False, **settings: Unpack[WorkerSettings]) -> RewardConfig:
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
    tier: Literal["auto", "namespaces", "landlock", "process"] | None = None,
    seconds: float | None = None,
    memory_mb: int | None = None,
    url: str | None = None,
    token_variable: str | None = None,
    grade: Literal["split", "shared"] | None = None,
    **settings: Unpack[WorkerSettings],
) -> RewardConfig:
    """1 when the program in the response passes all tests of its row (`fraction`: the share that it passes), run in the
    sandbox. `seconds` is for all tests of a response together. What is None is that of the run's `sandbox`."""
    options = {"score": score, "tier": tier, "seconds": seconds, "memory_mb": memory_mb}
    return _reward("code", {**options, "url": url, "token_variable": token_variable, "grade": grade}, settings)


def reasoning_gym(
    *, extract: Literal["auto", "tags", "all"] = "auto", allow: Sequence[str] = (), **settings: Unpack[WorkerSettings]
) -> RewardConfig:
    """What the task of reasoning-gym that made the row gives for the answer in the response. `allow`: names of tasks
    with unsound scores to use all the same. Needs `burnish[reasoning-gym]`."""
    allowed = allow if isinstance(allow, str) else list(allow)
    return _reward("reasoning_gym", {"extract": extract, "allow": allowed}, settings)


def choice(*, column: str | None = None, **settings: Unpack[WorkerSettings]) -> RewardConfig:
    """1 when the option that the response states last, by its label or text, is the right one, else 0. `column`: the
    one with the options, by default `choices`, else `options`."""
    return _reward("choice", {"column": column}, settings)


def instructions(
    *,
    mode: Literal["strict", "loose"] = "strict",
    score: Literal["all", "fraction"] = "all",
    **settings: Unpack[WorkerSettings],
) -> RewardConfig:
    """1 when the response follows all verifiable instructions of its row (`fraction`: the share that it follows), as
    IFEval has them. Rows about a language need `burnish[instructions]`."""
    return _reward("instructions", {"mode": mode, "score": score}, settings)


def json_schema(
    schema: dict[str, Any] | str | None = None,
    *,
    column: str | None = None,
    whole: bool = False,
    **settings: Unpack[WorkerSettings],
) -> RewardConfig:
    """1 when the JSON of the response is valid against the JSON Schema of its row (`column`: by default `json_schema`,
    else `schema`) or against this one, else 0. `whole`: nothing may be around it. Needs `burnish[json-schema]`."""
    return _reward("json_schema", {"schema": schema, "column": column, "whole": whole}, settings)


def command(
    argv: Sequence[str],
    *,
    score: Literal["exit_code", "stdout"] = "exit_code",
    wrong: Sequence[int] | None = None,
    suffix: str = "",
    folder: str | None = None,
    seconds: float = 8.0,
    too_slow: Literal["error", "wrong"] = "error",
    memory_mb: int | None = None,
    output_mb: int = 16,
    **settings: Unpack[WorkerSettings],
) -> RewardConfig:
    """What a program says of the response: 1 for exit status 0, 0 for one of `wrong`, an error for others (`stdout`:
    its last line is the score). It reads the response from standard input, or from the file that replaces `{file}`."""
    options = {
        "argv": argv if isinstance(argv, str) else list(argv),
        "score": score,
        "wrong": None if wrong is None else list(wrong),
        "suffix": suffix,
        "folder": folder,
        "seconds": seconds,
        "too_slow": too_slow,
        "memory_mb": memory_mb,
        "output_mb": output_mb,
    }
    return _reward("command", options, settings)


def judge(
    url: str | None = None,
    model: str | None = None,
    *,
    model_path: str | None = None,
    device: str | None = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    key_variable: str | None = None,
    form: Literal["score", "rubric", "pairwise", "steps"] = "score",
    template: str | None = None,
    system: str | None = None,
    reference: bool = False,
    scale: Sequence[float] | Mapping[str, float] | None = None,
    answer_format: Literal["json", "tag", "last_line"] = "json",
    criteria: Sequence[Mapping[str, Any]] | str | None = None,
    one_call: bool = True,
    opponents: int = 7,
    step_pattern: str | None = None,
    max_steps: int = 64,
    temperature: float = 0.0,
    max_tokens: int = 1024,
    seed: int | None = None,
    extra: Mapping[str, Any] | None = None,
    concurrency: int = 16,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    retries: int = 4,
    request_timeout_seconds: float | None = None,
    cache: str | None = None,
    price_in: float | None = None,
    price_out: float | None = None,
    labels: str | None = None,
    **settings: Unpack[Settings],
) -> RewardConfig:
    """What another language model says of the response, from 0 to 1: one behind an OpenAI-compatible endpoint (`url`,
    `model`), or one that this process loads (`model_path`). docs/judge.md says what each option does."""
    given = {name: value for name, value in locals().items() if name != "settings"}
    return _reward("judge", given, settings)


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
