"""Lookup of the engine that a run file's `rollout.engine` means, and the engine of a model without a run file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.engines import ENGINES, FIELD, find_outside, traits_of
from burnish.config.schema import RolloutConfig
from burnish.errors import ConfigError, RolloutError, did_you_mean
from burnish.outside.plugins import calling_outside, construct
from burnish.rollouts.engine import KeepingEngine, RestingEngine, RolloutEngine, StoppableEngine

if TYPE_CHECKING:
    from burnish.models.loading import LoadedModel


def engine_of(loaded: LoadedModel, *, max_batch_rows: int, context_length: int | None = None) -> RolloutEngine:
    """An engine that samples from the model as it is loaded, for texts up to its context if nothing else is said."""
    from burnish.rollouts.local.engine import LocalEngine  # imports transformers, so only when needed

    return LocalEngine.of(loaded, context_length=context_length, max_batch_rows=max_batch_rows)


def build_engine(
    rollout: RolloutConfig, loaded: LoadedModel, *, context_length: int, rests: bool = False, folder: Path = Path()
) -> RolloutEngine:
    """The engine that `rollout.engine` names: `local`, `vllm`, or a user's class, which takes the arguments of
    `LocalEngine` that have no defaults, and `rollout.engine_options`.

    rests: the run asks for its memory between calls. folder: where it writes its log. Raises ConfigError if there is no
    such class or it is not an engine.
    """
    name = rollout.engine
    if name == "local":
        return engine_of(loaded, context_length=context_length, max_batch_rows=rollout.max_batch_rows)
    log = traits_of(name).log
    arguments: dict[str, Any] = {
        "tokenizer": loaded.tokenizer,
        "eos_token_ids": loaded.eos_token_ids,
        "pad_token_id": loaded.pad_token_id,
        "context_length": context_length,
        "max_batch_rows": rollout.max_batch_rows,
        **({} if log is None else {"log": folder / log}),
    }
    if name == "vllm":
        from burnish.rollouts.vllm.engine import VllmEngine  # imports torch, so only when needed

        return VllmEngine(loaded.model, **arguments, settings=rollout.vllm, vocabulary=loaded.vocabulary, rests=rests)
    found: Any = find_engine(name)
    arguments |= rollout.engine_options
    with calling_outside(f"{FIELD} {name!r}, its constructor", RolloutError):
        engine: RolloutEngine = construct(found, name, loaded.model, arguments, field=FIELD, first_name="model")
    return engine


def find_engine(name: str) -> type:
    """The user's class behind the name. Raises ConfigError unless it has the methods of an engine, and is derived from
    what its traits promise."""
    module_name, colon, class_name = name.rpartition(":")
    if not (colon and module_name and class_name):
        ways = f"use {', '.join(map(repr, ENGINES))}, 'package.module:Class' or 'path/to/file.py:Class'"
        raise ConfigError(f"{FIELD} is {name!r}, which is not an engine", remedy=did_you_mean(name, [*ENGINES], ways))
    found, traits = find_outside(name), traits_of(name)
    for trait, is_promised, base in (
        ("can_stop", traits.can_stop, StoppableEngine),
        ("sleeps", traits.sleeps != "never", RestingEngine),
        ("keeps_rows", traits.keeps_rows, KeepingEngine),
    ):
        if is_promised and not issubclass(found, base):
            raise ConfigError(
                f"{FIELD} is {name!r}, whose traits have {trait}, but it is not a {base.__name__}",
                remedy=f"derive it from burnish.rollouts.engine.{base.__name__}, or leave {trait} out",
            )
    return found


def can_stop(name: str) -> bool:
    """Return whether the engine can stop in the middle of responses and go on later: a built-in one by its traits,
    without importing it, a user's class by what it is derived from. Raises what `find_engine` raises."""
    return traits_of(name).can_stop if name in ENGINES else issubclass(find_engine(name), StoppableEngine)
