"""Which engine a run file's `rollout.engine` means."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from burnish.errors import ConfigError
from burnish.rollouts.engine import RolloutEngine

_LOCAL = "local"
_FIELD = "rollout.engine"


def build_engine(
    name: str,
    model: Any,
    *,
    tokenizer: Any,
    eos_token_ids: Sequence[int],
    pad_token_id: int,
    context_length: int,
    max_batch_rows: int,
) -> RolloutEngine:
    """The engine called `name`: `local`, or a class given as `package.module:Class` that takes the same arguments as
    `LocalEngine`. Raises ConfigError when there is no such class or it is not an engine."""
    engine_class = find_engine(name)
    arguments = {
        "tokenizer": tokenizer,
        "eos_token_ids": eos_token_ids,
        "pad_token_id": pad_token_id,
        "context_length": context_length,
        "max_batch_rows": max_batch_rows,
    }
    try:
        inspect.signature(engine_class).bind(model, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"{_FIELD} is {name!r}, whose constructor does not fit: {error}",
            remedy=f"it must take (model, *, {', '.join(arguments)})",
        ) from error
    return engine_class(model, **arguments)


def find_engine(name: str) -> Any:
    """The class behind the name, checked to have the methods of an engine."""
    if name == _LOCAL:
        from burnish.rollouts.local import LocalEngine  # imports transformers, so only when it is needed

        return LocalEngine
    module_name, colon, class_name = name.partition(":")
    if not (colon and module_name and class_name):
        near = difflib.get_close_matches(name.lower(), [_LOCAL], cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{_FIELD} is {name!r}, which is no engine", remedy=f"{hint}Use {_LOCAL!r} or 'package.module:Class'"
        )
    return _checked(name, _attribute(name, module_name, class_name))


def _attribute(name: str, module_name: str, class_name: str) -> Any:
    try:
        members = vars(importlib.import_module(module_name))
    except ImportError as error:
        raise ConfigError(
            f"{_FIELD} is {name!r}, but {module_name} cannot be imported: {error}",
            remedy="check the module's name and that it is installed",
        ) from error
    if class_name not in members:
        near = difflib.get_close_matches(class_name, members, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "check the spelling"
        raise ConfigError(f"{_FIELD} is {name!r}, but {module_name} has no {class_name}", remedy=hint)
    return members[class_name]


def _checked(name: str, found: Any) -> Any:
    if not inspect.isclass(found):
        raise ConfigError(
            f"{_FIELD} is {name!r}, which is a {type(found).__name__}",
            remedy="name a class that implements RolloutEngine",
        )
    missing = [method for method in ("generate", "sync") if method not in dir(found)]
    if missing:
        raise ConfigError(
            f"{_FIELD} is {name!r}, which has no method {' and no '.join(missing)}",
            remedy="an engine implements burnish.rollouts.engine.RolloutEngine",
        )
    return found
