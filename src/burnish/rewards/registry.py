"""The built-in rewards, as a literal table. Nothing registers itself, and a reward's code is imported on use."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from burnish.errors import ConfigError
from burnish.outside.plugins import why_not
from burnish.rewards.builtins.reading_rows import check_word


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One built-in reward.

    `target` is `module:attribute`. `runs` says whether it needs a killable worker, as most do, or may run in the
    training process, because it is cheap and cannot hang; a `service` only waits for others, on a thread of the
    training process, and its target is the class of its options. `top_score` is its highest score, None if not known.
    """

    target: str
    summary: str
    runs: Literal["inline", "process", "service"] = "process"
    top_score: float | None = 1.0

    def load(self) -> Callable[..., Any]:
        """Import the class."""
        place, _, attribute = self.target.partition(":")
        return vars(importlib.import_module(place))[attribute]

    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The options: parameters of the class, each annotated with its type and one line of help."""
        return inspect.signature(self.load(), eval_str=True).parameters

    def check_types(self, reward: str, given: Mapping[str, Any]) -> None:
        """Raise ConfigError for an option whose value is not of the option's type."""
        for name, option in self.parameters().items():
            kind = option.annotation.__origin__
            if name in given and get_origin(kind) is Literal:
                check_word(reward, name, given[name], get_args(kind))
            elif name in given and (wrong := why_not(kind, given[name])):
                raise ConfigError(f"option {name} of reward {reward!r} is {given[name]!r}", remedy=f"write {wrong}")

    @property
    def options(self) -> dict[str, str]:
        """One line of help for each option, with its default unless the line states it."""
        return {name: _help(parameter) for name, parameter in self.parameters().items()}


def _help(option: inspect.Parameter) -> str:
    said = option.annotation.__metadata__[-1]
    if "default" in said or "required" in said or option.default in (None, ""):
        return said
    return f"{said} ({_default(option.default)})"


def _default(value: Any) -> str:
    """Write a default as in a run file."""
    if value is inspect.Parameter.empty:
        return "required"
    shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value).lower().removesuffix(".0")
    return f"default {shown}"


_HERE = "burnish.rewards.builtins"

BUILT_INS: dict[str, BuiltIn] = {
    "math": BuiltIn(
        f"{_HERE}.math_answer:MathAnswer", "1 when the final answer equals the gold answer mathematically, else 0"
    ),
    "exact": BuiltIn(f"{_HERE}.text:Exact", "1 when the response equals the answer as text, else 0", runs="inline"),
    "regex": BuiltIn(f"{_HERE}.text:Regex", "1 when the pattern is found in the response, else 0"),
    "format": BuiltIn(
        f"{_HERE}.text:Format",
        "1 when the response consists of the tags in order, each exactly once and not empty, else 0",
        runs="inline",
    ),
    "length": BuiltIn(
        f"{_HERE}.text:Length",
        "closeness to a target length (1 at the target, 0 at zero or twice the target), or 1 up to a maximum, else 0",
        runs="inline",
    ),
    "overlong": BuiltIn(
        f"{_HERE}.text:Overlong",
        "soft over-long penalty: 0 up to max_tokens - buffer_tokens, linear down to -1 at max_tokens",
        runs="inline",
        top_score=0.0,
    ),
    "repetition": BuiltIn(
        f"{_HERE}.text:Repetition",
        "minus the fraction of n-grams that repeat an earlier one: 0 without repeats, towards -1 for a loop",
        runs="inline",
        top_score=0.0,
    ),
    "environment": BuiltIn(
        f"{_HERE}.environment:Environment",
        "what the environment of a conversation paid for it",
        runs="inline",
        top_score=None,
    ),
    "code": BuiltIn(
        f"{_HERE}.code:Code",
        "1 when the program in the response passes all tests of its row, run in the sandbox, else 0",
    ),
    "reasoning_gym": BuiltIn(
        f"{_HERE}.reasoning_gym:ReasoningGym",
        "what the task of reasoning-gym that made the row gives for the answer in the response, 0 to 1",
    ),
    "choice": BuiltIn(
        f"{_HERE}.choice:Choice",
        "1 when the option that the response states last, by label or text, is the right one, else 0",
    ),
    "instructions": BuiltIn(
        f"{_HERE}.instructions:Instructions",
        "1 when the response follows all verifiable instructions of its row, as IFEval has them, else 0",
    ),
    "json_schema": BuiltIn(
        f"{_HERE}.json_schema:JsonSchema",
        "1 when the JSON of the response is valid against the JSON Schema of its row, else 0",
    ),
    "command": BuiltIn(
        f"{_HERE}.command:Command",
        "what a program of yours says about the response: 1 for exit status 0, 0 for others that you name",
    ),
    "judge": BuiltIn(
        "burnish.rewards.judging.options:JudgeOptions",
        "what another language model says about the response, from 0 to 1 (docs/judge.md)",
        runs="service",
    ),
}
