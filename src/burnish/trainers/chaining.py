"""Models that a run file takes from other runs: each path that names a run becomes the folder of its checkpoint.

This happens before anything is loaded or written, so config.yaml names exactly the weights that the run began with.
If the other run has trained further since, a resume is refused (the error gives both steps) instead of taking its newer
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from burnish.checkpointing.chaining import Chosen, find_checkpoint
from burnish.checkpointing.run import RunDirectory
from burnish.checkpointing.store import CheckpointStore, read_pending
from burnish.config.names import MODEL_REWARD
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_run import ConfigT
from burnish.observability.console import say
from burnish.trainers.result import CRITIC_FOLDER, WEIGHTS_FOLDER


def pinned(config: ConfigT) -> tuple[ConfigT, list[str]]:
    """The configuration with each model path that names a run replaced by the weights of its checkpoint, and one line
    about each replacement. Raises CheckpointError as `find_checkpoint` does."""
    said: list[str] = []
    for place in config.named_places():
        field = f"{place.field}.name" if place.role == "reward" else place.field
        chosen = None if place.role is None else find_checkpoint(place.text, field=field)
        if chosen is None:
            continue
        said.append(f"{field}: {chosen}")
        weights = str(_weights(chosen, place.role))
        if place.role == "reward":
            weights = MODEL_REWARD + weights
            if _is_before_normalization(chosen):
                said.append(
                    f"{field}: scores of step {chosen.checkpoint.step} are not normalised, which {chosen.run} does "
                    "after its last step: let that run finish and take its last checkpoint, or choose a weight that "
                    "suits their scale"
                )
        config = _with_value(config, field.split("."), weights)
    return config, said


def _weights(chosen: Chosen, role: str | None) -> Path:
    """The folder of a checkpoint that serves in this role: for `critic.init` the separate critic of the run, if there
    is one."""
    own = chosen.checkpoint.folder / CRITIC_FOLDER
    return own if role == "critic" and own.is_dir() else chosen.checkpoint.folder / WEIGHTS_FOLDER


def _with_value(inside: Any, path: Sequence[str], value: str) -> Any:
    """The same section, list or table of sections with this value at a path inside it."""
    if not path:
        return value
    name, *rest = path
    if isinstance(inside, tuple):
        return tuple(_with_value(one, rest, value) if str(n) == name else one for n, one in enumerate(inside))
    if isinstance(inside, dict):
        return inside | {name: _with_value(inside[name], rest, value)}
    return inside.model_copy(update={name: _with_value(getattr(inside, name), rest, value)})


def measured(config: ConfigT, weights: Path | None, console: Console) -> ConfigT:
    """The configuration with the weights to measure as its model; reports the paths of runs that were replaced."""
    if weights is not None:
        config = config.model_copy(update={"model": with_weights(config.model, str(weights))})
    config, chained = pinned(config)
    say(console, chained)
    return config


def with_weights(model: ModelConfig, weights: str) -> ModelConfig:
    """The model of a run file with saved weights instead of its own. They are complete: adapters are merged on saving,
    into the quantized weights if there are any, and nothing is initialised from scratch."""
    whole = {"lora": None, "quantization": None, "from_scratch": False, "revision": None}
    return model.model_copy(update={"path": weights, **whole})


def _is_before_normalization(chosen: Chosen) -> bool:
    """Return whether this checkpoint precedes the final normalisation of its run, as far as its folder tells: of a run
    without `steps`, the newest may be the last."""
    config = RunDirectory(chosen.run).read_config()
    settings = config.get("normalization")
    if not isinstance(settings, dict) or settings.get("kind") == "none" or not settings.get("after"):
        return False
    step, steps = chosen.checkpoint.step, config.get("steps")
    if step != CheckpointStore(chosen.run).steps()[-1] or (isinstance(steps, int) and step < steps):
        return True
    pending = read_pending(chosen.checkpoint.folder)
    return pending is not None and not pending.normalised
