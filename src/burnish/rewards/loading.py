"""Load a reward from its name in the run file: a built-in, or a function or class in a file or module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from burnish.config.names import IN_MEMORY, MODEL_REWARD
from burnish.config.secrets import masked
from burnish.errors import ConfigError, RewardError, did_you_mean
from burnish.outside.plugins import calling_outside, import_place
from burnish.rewards.foreign import adapted, system_of
from burnish.rewards.inputs import Signature, check_options, read_signature
from burnish.rewards.registry import BUILT_INS

Functions = Mapping[str, Callable[..., Any]]
"""`python:NAME` to the function, of the training program and in no file.

Such functions cannot be serialised or sent to another process. Their worker is a fork of this one
(`burnish.rewards.worker_process`), so they are in its memory.
"""

_NONE: Functions = {}
_AT_HAND: ContextVar[Functions] = ContextVar("burnish_functions_at_hand", default=_NONE)


@contextmanager
def functions_at_hand(functions: Functions) -> Iterator[None]:
    """Make `function_named` find these functions in this context, and in workers forked by a pool made within it."""
    before = _AT_HAND.set(functions)
    try:
        yield
    finally:
        _AT_HAND.reset(before)


def function_named(name: str) -> Callable[..., Any]:
    """The function behind `python:NAME`. RewardError in any program but the one that defined it."""
    functions = _AT_HAND.get()
    if name not in functions:
        raise RewardError(
            f"reward {name!r} is a function of the Python program that began this run, and is not in any file",
            remedy=f"start again from that program, with the same function in `rewards`; or write "
            f"{name.removeprefix(IN_MEMORY)!r} into a file and name it as path/to/file.py:function",
        )
    return functions[name]


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One reward of the run file, as plain data, so that worker processes need no configuration classes."""

    name: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 10.0
    environment: tuple[str, ...] = ()
    concurrency: int | None = None
    audit: bool = False

    @property
    def is_model(self) -> bool:
        """True for a reward model (`model:PATH`), which `burnish.rewards.model_reward` loads."""
        return self.name.startswith(MODEL_REWARD)

    @property
    def is_in_memory(self) -> bool:
        """True for a function of this program (`python:NAME`), which only a fork of this process can call."""
        return self.name.startswith(IN_MEMORY)

    @property
    def runs_inline(self) -> bool:
        """True for a reward that may run in the training process: only built-ins that cannot hang."""
        return self.name in BUILT_INS and BUILT_INS[self.name].runs == "inline"

    @property
    def is_judge(self) -> bool:
        """True for a judge, which `burnish.rewards.judging` asks from the training process."""
        return self.name in BUILT_INS and BUILT_INS[self.name].runs == "service"

    @property
    def runs_in_worker(self) -> bool:
        """True for a reward that could hang, and so runs in a process that can be killed: all others."""
        return not (self.is_model or self.is_judge or self.runs_inline)


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """A reward that can be called with the arguments of its signature. Its options are already bound."""

    spec: RewardSpec
    call: Callable[..., Any]
    signature: Signature


def load_reward(spec: RewardSpec) -> LoadedReward:
    """Find, check and (for a class) construct a reward.

    Raises RewardError if it does not exist or fails to import, and ConfigError for a wrong option.
    """
    target = find_reward(spec.name)
    system = system_of(target)
    if system is not None:
        target = adapted(target, system)
    check_options(target, spec.label, spec.options)
    if spec.name in BUILT_INS:
        BUILT_INS[spec.name].check_types(spec.name, spec.options)
    if inspect.isclass(target):
        call = _construct(target, spec)
        return LoadedReward(spec, call, read_signature(call, spec.label, ()))
    call = functools.partial(target, **spec.options)
    signature = read_signature(target, spec.label, tuple(spec.options))
    return LoadedReward(spec, call, replace(signature, system="" if system is None else system.name))


def find_reward(name: str) -> Callable[..., Any]:
    """The function or class that a name means: a built-in, `path/to/file.py:function`, `package.module:function`, or
    the `python:NAME` of a function in memory."""
    if name.startswith(IN_MEMORY):
        return function_named(name)
    if name in BUILT_INS:
        return BUILT_INS[name].load()
    place, separator, attribute = name.rpartition(":")
    if not separator or not place or not attribute:
        known = f"use one of {', '.join(BUILT_INS)}, path/to/file.py:function or package.module:function"
        known += " (examples/rewards has sql and sentiment)"
        raise RewardError(f"there is no built-in reward {name!r}", remedy=did_you_mean(name, BUILT_INS, known))
    try:
        module = import_place(place, f"a reward is {name!r}")
    except ConfigError as error:
        raise RewardError(error.message, remedy=error.remedy) from error.__cause__
    return _attribute(module, attribute, name)


def _attribute(module: ModuleType, attribute: str, name: str) -> Callable[..., Any]:
    found = vars(module).get(attribute)
    if callable(found):
        return found
    callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    what = "is not a function or class" if found is not None else "does not exist"
    raise RewardError(
        f"reward {name!r}: {attribute!r} {what} in {module.__file__ or module.__name__}",
        remedy=did_you_mean(attribute, callables) or f"it has {', '.join(callables) or 'no functions'}",
    )


def _construct(target: type, spec: RewardSpec) -> Callable[..., Any]:
    missing = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in spec.options
    ]
    if missing:
        raise ConfigError(
            f"reward {spec.label!r} needs the option {missing[0]!r}", remedy=f"set it under options: {missing[0]}"
        )
    shown = masked(dict(spec.options), place="options")
    with calling_outside(f"constructing reward {spec.label!r} with options {shown}", RewardError):
        instance = target(**spec.options)
    if not callable(instance):
        raise RewardError(
            f"reward {spec.label!r}: class {target.__name__} has no __call__ method",
            remedy="give it one, or name a function",
        )
    return instance
