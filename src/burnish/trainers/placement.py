"""The resources of this machine, with the speed of its processor as fast-path trials have timed it, and a check before
the start of a run that its processes fit on it."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from burnish.config.schema_run import ConfigT, RunConfig
from burnish.forward.race import RaceResult, tokens_for
from burnish.forward.verdicts import Key, own_cache
from burnish.machine.resources import allowed_cores, container_limits
from burnish.planning.machines import Machine, Speed
from burnish.planning.model_facts import (
    ModelFacts,
    RewardFacts,
    facts_by_name,
    facts_of,
    read_model_facts,
    read_reward_facts,
)
from burnish.planning.processes import seats_of, sharding_of, threads_each
from burnish.planning.shortages import refuse_impossible, seat_warnings
from burnish.trainers.chaining import pinned

_MEMORY_BYTES = 1e10
"""Assumed bytes a second of a processor's memory, and between its processes."""
_OVERHEADS = (1.2e-3, 1e-5, 2e-2, 0.1)
"""Seconds of a decoding step, of each of its rows, of a micro-batch, and of rewards and logging of a step, whatever the
model's size: measured with models of 0.1 to 1 million parameters on a 2-core machine."""
_SIZE = re.compile(r"(\w+) (\d+)(?:, |$)")
_TRAINED_TOKENS, _FEWEST_TOKENS, _PARTS = 512, 64, 31
_WIDE = 4_000_000
_DECODED_ROWS, _DECODED_CONTEXT = 32, 128


def this_machine() -> Machine:
    """Describe the cores, threads, memory and GPUs that this process may use."""
    gpus = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    return Machine(allowed_cores(container_limits()), torch.get_num_threads(), host_memory(), tuple(gpus))


def host_memory() -> int:
    """Bytes of this machine's memory that this process may use."""
    limits, memory = container_limits(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory if limits.memory_bytes is None else min(memory, limits.memory_bytes)


def with_kept_speed(machine: Machine, config: RunConfig, facts: ModelFacts) -> Machine:
    """Add the speed that earlier runs, or `burnish doctor`, have timed on this machine's processor. Unchanged if it has
    GPUs, the run is for one, or nothing was timed."""
    if machine.gpu_bytes or config.model.device not in ("auto", "cpu"):
        return machine
    trials = [trial for trial in map(KeptTrial.of, own_cache().kept_here(threads_of(config))) if trial is not None]
    # Of the model whose layers are most alike, and of several the fastest.
    passes, decoding = (
        min((one for one in trials if one.path == path), key=lambda one: (one.distance(facts), -one.rate), default=None)
        for path in _WORK
    )
    if passes is None:
        return machine
    rate = (decoding or passes).rate
    source = f"fast paths timed on this machine with {passes.likeness(facts)}"
    speed = Speed(passes.rate, rate, _MEMORY_BYTES, source, _MEMORY_BYTES, _MEMORY_BYTES, 0.0, *_OVERHEADS)
    return replace(machine, speed=speed)


def threads_of(config: RunConfig) -> int:
    """Number of threads of PyTorch in each process of the run."""
    shares = config.cluster.runs_on != "ray"  # whose processes may be on other machines
    return config.cluster.threads or (threads_each(config, this_machine()) if shares else torch.get_num_threads())


def check_placement(config: RunConfig, machine: Machine | None = None) -> list[str]:
    """Return warnings about the run's processes on this machine, and the choice of `cluster.sharding: auto` if it is
    not `whole`. ConfigError if they cannot run here; CheckpointError for a model path that names a run without a
    checkpoint. Reads no weights, only the config.json of each model and the sizes in its files."""
    machine = machine or this_machine()
    config, _ = pinned(config)
    facts, rewards = model_facts(config), reward_facts(config)
    seats = seats_of(config, facts, machine, rewards)
    refuse_impossible(config, seats, machine, facts)
    choice = sharding_of(config, facts, machine, rewards)
    is_news = config.cluster.sharding == "auto" and choice.sharding != "whole"
    said = [f"cluster.sharding: {choice.sharding} ({choice.because})"] if is_news else []
    return [*said, *seat_warnings(config, seats, machine)]


def placed(config: ConfigT) -> ConfigT:
    """The run file for its trainers, with `cluster.sharding: auto` resolved for this machine."""
    choice = sharding_of(config, model_facts(config), this_machine(), reward_facts(config))
    return config.changed("cluster", sharding=choice.sharding)


def model_facts(config: RunConfig) -> ModelFacts | None:
    """The sizes of the trained model, of its teachers, and of a critic that begins from other weights."""
    facts, source = _facts_of(config.model.path), config.critic_source
    if facts is None:
        return None
    critic = None if source is None else _facts_of(source)
    return replace(facts, critic=critic, teachers=tuple(map(_facts_of, config.teacher_sources)))


def _facts_of(path: str) -> ModelFacts | None:
    """The sizes of a model in a folder, or of a model on the hub that is known without a download."""
    folder = Path(path).expanduser()
    return read_model_facts(folder) if folder.exists() else facts_by_name(path)


def reward_facts(config: RunConfig) -> tuple[RewardFacts, ...]:
    """The sizes of the run's reward models; see `read_reward_facts`."""
    return read_reward_facts(config.all_rewards)


@dataclass(frozen=True, slots=True)
class KeptTrial:
    """A kept trial of a fast path: its path, the sizes of its model and its operations a second.

    The trials come from `burnish.forward.probe` (a forward and backward pass through the first layers) and
    `burnish.rollouts.local.kernel_trial` (a step of some rows with the first layers and the head). Their best rounds
    are kept (`burnish.forward.verdicts`), so the rates hold for an otherwise idle machine.
    """

    path: str
    facts: ModelFacts
    rate: float

    @staticmethod
    def of(kept: tuple[Key, RaceResult]) -> KeptTrial | None:
        """Read a kept trial; None if it is not of a model's training passes or decoding steps."""
        key, outcome = kept
        path, shape = str(key.get("path")), str(key.get("shape"))
        facts = facts_of({name: int(number) for name, number in _SIZE.findall(shape)})
        if facts is None or path not in _WORK:
            return None
        return KeptTrial(path, facts, _WORK[path](facts) / outcome.seconds[outcome.winner])

    def likeness(self, facts: ModelFacts) -> str:
        """Describe the model of the trial in words."""
        same = self.distance(facts) == 0
        return "a model of these sizes" if same else f"a model of hidden size {self.facts.hidden_size:,}"

    def distance(self, facts: ModelFacts) -> float:
        """Distance between the sizes of a layer, as the absolute log of their ratio."""
        one, other = (found.body / found.num_layers for found in (self.facts, facts))
        return abs(math.log(one / other))


def _operations_of_pass(facts: ModelFacts) -> float:
    """Operations of a forward and backward pass through one or two layers, as in `keep_faster_layers`."""
    layer = facts.body // facts.num_layers
    layers = 1 if layer > _WIDE else 2
    size = tokens_for(layers * layer, wanted=_TRAINED_TOKENS, fewest=_FEWEST_TOKENS) // 32
    return 6.0 * layers * layer * _PARTS * size


def _operations_of_step(facts: ModelFacts) -> float:
    """Operations of a decoding step, as in `burnish.rollouts.local.kernel_trial.TimedStep`."""
    layer, head = facts.body / facts.num_layers, facts.vocabulary_size * facts.hidden_size
    layers = max(2, min(facts.num_layers, -(-head // layer)))
    width = facts.num_attention_heads * facts.head_size
    return _DECODED_ROWS * (2 * (layers * layer + head) + 4 * layers * width * _DECODED_CONTEXT)


_WORK = {"training passes": _operations_of_pass, "decoding": _operations_of_step}
