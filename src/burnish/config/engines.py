"""Traits of an engine (`rollout.engine`), for everything that is decided before it is built: checks of the run file,
the plan, and which processes start with what.

Every engine states its own: a built-in one in the `traits` module of its folder, a user's class in its attribute
`traits`. None of these modules imports torch, nor does this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.config.problems import Problem
from burnish.errors import ConfigError
from burnish.outside.plugins import find_class

if TYPE_CHECKING:  # run files ask for traits
    from burnish.config.schema_data import ModelConfig
    from burnish.config.schema_rollout import RolloutConfig

ENGINES = {"local": "burnish.rollouts.local.traits", "vllm": "burnish.rollouts.vllm.traits"}
"""Module with the `TRAITS` of each built-in engine. An engine with settings of its own has a section of its name in
`rollout`."""
FALLBACK = "local"
"""The engine that takes every setting, which messages recommend where another one does not."""
ARGUMENTS = ("model", "tokenizer", "eos_token_ids", "pad_token_id", "context_length", "max_batch_rows", "log")
"""Arguments of a user's class that are no options."""
FIELD = "rollout.engine"


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Traits of an engine. The defaults describe one that samples from the module it is given, takes every setting, and
    needs nothing but room for keys and values. What depends on a run file is a method, to be overridden.

    label: its name in messages.
    copies: it samples from a copy of the weights, beside its process's own: rollout workers keep these on the CPU.
    takes_adapters: as a rollout worker it gets only the adapters of a model that has some (`model.lora`).
    sleeps: where it can give up its memory between calls (`cluster.offload`); its class is a `RestingEngine`.
    can_stop: in the middle of a response (`partial`); its class is a `StoppableEngine`.
    takes_stop_texts: `rollout.stop`.
    lowest_temperature: below it, the engine would sample something else.
    reserved: options that a run file cannot set, and why.
    gpus_option: the option that says on how many GPUs one engine computes.
    gpu_share: fraction of its GPU that it takes when it starts, however little it needs. share_options: options that
    set another share, the first of them as a fraction.
    log: name of a file for what a process of its own prints; a user's class gets its path as the argument `log`.
    step_seconds: fixed time of a decoding step, in plans; None if it is a model's whose operations start from Python.
    lays_out_weights: on a CPU, it holds another layout of the weights while it decodes.
    fixed_steps: on a GPU, it decodes in steps of fixed shapes, with sizes rounded up and their logits held.
    keeps_rows: it keeps keys and values between the turns of conversations.
    tries_paths: it is made with trials of fast paths on the loaded model.
    memory: what else it holds while it samples, in bytes, by name.
    """

    label: str = "the engine"
    copies: bool = False
    takes_adapters: bool = False
    sleeps: Literal["never", "on GPUs", "anywhere"] = "never"
    can_stop: bool = False
    takes_stop_texts: bool = True
    lowest_temperature: float = 0.0
    reserved: Mapping[str, str] = field(default_factory=dict)
    gpus_option: str | None = None
    gpu_share: float = 0.0
    share_options: tuple[str, ...] = ()
    log: str | None = None
    step_seconds: float | None = None
    lays_out_weights: bool = False
    fixed_steps: bool = False
    keeps_rows: bool = False
    tries_paths: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    options_field: str = "rollout.engine_options"

    def options(self, rollout: RolloutConfig) -> Mapping[str, Any]:
        """Its options in a run file, which are under `options_field`."""
        return rollout.engine_options

    def place(self, rollout: RolloutConfig) -> str:
        """Words for the place of its copy of the weights, to end a sentence with."""
        return ""

    def check(self, rollout: RolloutConfig, model: ModelConfig) -> Iterable[Problem]:
        """Problems with settings that only this engine refuses."""
        return ()

    def check_here(self, rollout: RolloutConfig) -> None:
        """Raise ConfigError if it cannot run on this machine."""


NO_TRAITS = EngineTraits()


@dataclass(frozen=True, slots=True)
class EngineUse:
    """Sampling while a run trains. options: the engine's. rows: most that it samples at the same time.
    stays: it is on the GPU of a process that trains, and never gives up its memory."""

    traits: EngineTraits = NO_TRAITS
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    stays: bool = False

    @property
    def gpus(self) -> int:
        """GPUs that each engine computes on."""
        size = None if self.traits.gpus_option is None else self.options.get(self.traits.gpus_option)
        return size if isinstance(size, int) else 1


NO_ENGINE = EngineUse()


def traits_of(name: str) -> EngineTraits:
    """The traits of the engine that `rollout.engine` names.

    A user's class without any has the defaults, and so have a file that is not on this machine and a name of no engine:
    building them fails. Raises what `find_outside` raises.
    """
    if name in ENGINES:
        return import_module(ENGINES[name]).TRAITS
    place, _, class_name = name.rpartition(":")
    if not (place and class_name) or (place.endswith(".py") and not Path(place).expanduser().is_file()):
        return NO_TRAITS
    said = getattr(find_outside(name), "traits", NO_TRAITS)
    if not isinstance(said, EngineTraits):
        raise ConfigError(
            f"{FIELD} is {name!r}, whose `traits` are {said!r:.80}",
            remedy="make them a burnish.config.engines.EngineTraits, or leave them out",
        )
    return replace(said, reserved={**dict.fromkeys(ARGUMENTS, "it is given to every engine"), **said.reserved})


def find_outside(name: str) -> type:
    """The user's class behind the name. Raises ConfigError unless there is one with the methods of an engine."""
    methods = ("generate", "sync", "take_metrics")
    return find_class(name, field=FIELD, methods=methods, protocol="burnish.rollouts.engine.RolloutEngine")
