"""Which engine a run file's `rollout.engine` means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config.schema import VllmConfig
from burnish.errors import ConfigError, RolloutError
from burnish.outside.plugins import calling_outside, construct, find_class
from burnish.rollouts.engine import RolloutEngine
from burnish.words import did_you_mean

if TYPE_CHECKING:
    from burnish.models.loading import LoadedModel

_LOCAL, _VLLM = "local", "vllm"
_FIELD = "rollout.engine"


def build_engine(
    name: str,
    loaded: LoadedModel,
    *,
    context_length: int,
    max_batch_rows: int,
    vllm: VllmConfig | None = None,
    rests: bool = False,
    log: Path = Path("vllm.log"),
) -> RolloutEngine:
    """The engine called `name`: `local`, `vllm` (with its settings, whether it `rests`, and a log file), or a class
    given as `package.module:Class` that takes the arguments of `LocalEngine` without those that have defaults. Raises
    ConfigError if there is no such class or it is not an engine."""
    if name == _LOCAL:
        from burnish.rollouts.local.engine import LocalEngine  # imports transformers, so only when needed

        return LocalEngine.of(loaded, context_length=context_length, max_batch_rows=max_batch_rows)
    arguments: dict[str, Any] = {
        "tokenizer": loaded.tokenizer,
        "eos_token_ids": loaded.eos_token_ids,
        "pad_token_id": loaded.pad_token_id,
        "context_length": context_length,
        "max_batch_rows": max_batch_rows,
    }
    if name == _VLLM:
        from burnish.rollouts.vllm.engine import VllmEngine  # imports torch, so only when needed

        settings, vocabulary = vllm or VllmConfig(), loaded.vocabulary
        return VllmEngine(loaded.model, **arguments, settings=settings, vocabulary=vocabulary, rests=rests, log=log)
    found = find_engine(name)
    with calling_outside(f"{_FIELD} {name!r}, its constructor", RolloutError):
        engine: RolloutEngine = construct(found, name, loaded.model, arguments, field=_FIELD, first_name="model")
    return engine


def find_engine(name: str) -> type:
    """The class behind the name. Raises ConfigError unless it has the methods of an engine."""
    if name == _LOCAL:
        from burnish.rollouts.local.engine import LocalEngine  # imports transformers, so only when needed

        return LocalEngine
    if name == _VLLM:
        from burnish.rollouts.vllm.engine import VllmEngine  # imports torch, so only when needed

        return VllmEngine
    module_name, colon, class_name = name.rpartition(":")
    if not (colon and module_name and class_name):
        ways = f"use {_LOCAL!r}, {_VLLM!r}, 'package.module:Class' or 'path/to/file.py:Class'"
        raise ConfigError(
            f"{_FIELD} is {name!r}, which is not an engine", remedy=did_you_mean(name, [_LOCAL, _VLLM], ways)
        )
    found: Any = find_class(
        name,
        field=_FIELD,
        methods=("generate", "sync", "take_metrics"),
        protocol="burnish.rollouts.engine.RolloutEngine",
    )
    return found
