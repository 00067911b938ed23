"""The resources of this machine, and a check before the start of a run that its processes fit on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from burnish.config.schema_run import ConfigT, RunConfig
from burnish.forward.verdicts import own_cache
from burnish.machine.container import allowed_cores, container_limits
from burnish.planning.machines import Machine, Speed
from burnish.planning.model_facts import ModelFacts, RewardFacts, facts_by_name, read_model_facts, read_reward_facts
from burnish.planning.processes import seats_of, sharding_of, threads_each
from burnish.planning.shortages import refuse_impossible, seat_warnings
from burnish.trainers.chaining import pinned
from burnish.trainers.processor_speed import MEMORY_BYTES, OVERHEADS, KeptTrial, nearest_trial

_TIMED = ("training passes", "decoding")


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
    passes, decoding = (nearest_trial([one for one in trials if one.path == path], facts) for path in _TIMED)
    if passes is None:
        return machine
    rate = (decoding or passes).rate
    source = f"fast paths timed on this machine with {passes.likeness(facts)}"
    speed = Speed(passes.rate, rate, MEMORY_BYTES, source, MEMORY_BYTES, MEMORY_BYTES, 0.0, *OVERHEADS)
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
