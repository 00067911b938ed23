"""Shortages of a machine: GPUs and memory that the processes of a run need, and it lacks or may lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burnish.config.schema_run import RunConfig
from burnish.errors import ConfigError
from burnish.planning.machines import Machine
from burnish.planning.memory import bytes_in_words, peak_bytes
from burnish.planning.model_facts import ModelFacts
from burnish.planning.processes import PlannedProcess, needs_of_gpus, needs_of_nodes, on_this_machine

_NAMED = 3
"""Processes that a refusal lists, the largest."""


def refuse_impossible(
    config: RunConfig, seats: Sequence[PlannedProcess], machine: Machine, facts: ModelFacts | None = None
) -> None:
    """Raise ConfigError for processes that this machine cannot have: too few GPUs, or too little memory even if all
    texts are short; and for settings that only Ray could honour. A single process is never refused, nor are processes
    that may be on several machines: in a run on an existing Ray cluster only what stays here is checked. If the machine
    is not this one, only settings are refused; `shortages` reports the rest."""
    for field in ("cpus_per_worker", "gpus_per_worker") if config.cluster.runs_on != "ray" else ():
        if config.cluster.model_dump()[field] is not None:
            raise ConfigError(
                f"cluster.{field} is set, but this run does not use Ray, which alone gives them out",
                remedy="leave it out, or set cluster.backend: ray (or RAY_ADDRESS)",
            )
    if not config.cluster.uses_processes:
        return
    _refuse_numbered_gpu(config)
    _refuse_uneven_heads(config, facts)
    if not machine.is_here or not on_this_machine(config):
        return
    seats = [seat for seat in seats if not seat.elsewhere]
    # Ray knows what its nodes have, and what parts of a GPU are, and is asked before the start.
    if not config.cluster.joins_cluster and config.cluster.gpus_per_worker is None:
        _refuse_gpus(config, machine)
    needed = sum(peak_bytes(seat.host, certain=True) for seat in seats)
    if machine.memory_bytes is not None and needed > machine.memory_bytes:
        needs = {seat.name: peak_bytes(seat.host, certain=True) for seat in seats}
        named = sorted(needs, key=lambda name: -needs[name])[:_NAMED]
        each = ", ".join(f"{name} {bytes_in_words(size)}" for name, size in needs.items() if name in named)
        each += f", and {len(needs) - _NAMED} more" if len(needs) > _NAMED else ""
        raise ConfigError(
            f"{_asked(config)}: the processes of this run need at least {bytes_in_words(needed)} of memory, but this "
            f"machine has {bytes_in_words(machine.memory_bytes)} ({each})",
            remedy="lower them, take a smaller model, or set model.dtype: bfloat16 or model.lora (and quantization)",
        )
    for gpu, names, needed, there in _crowded(seats, machine, certain=True):
        raise ConfigError(
            f"{names} needs at least {bytes_in_words(needed)} of GPU {gpu}, which has {bytes_in_words(there)}",
            remedy="take a smaller model, or set model.dtype: bfloat16 or model.lora (and model.quantization)",
        )


def _refuse_uneven_heads(config: RunConfig, facts: ModelFacts | None) -> None:
    """An engine gives each of its GPUs an equal number of attention heads."""
    size, traits = config.engine.gpus, config.engine.traits
    if facts is not None and facts.num_attention_heads % size:
        raise ConfigError(
            f"{traits.options_field}.{traits.gpus_option} is {size}, but {config.model.path} has "
            f"{facts.num_attention_heads} attention heads, which {size} GPUs cannot share equally",
            remedy="set it to a number that divides them",
        )


def _refuse_numbered_gpu(config: RunConfig) -> None:
    device = config.model.device
    if device.startswith("cuda:") and config.cluster.num_processes > 1:
        raise ConfigError(
            f"model.device is {device}, but with several processes each has its own GPU",
            remedy="set model.device: cuda (trainers get the first GPUs), and choose among GPUs with "
            "CUDA_VISIBLE_DEVICES",
        )


def _refuse_gpus(config: RunConfig, machine: Machine) -> None:
    count, there, device = config.cluster.num_processes, len(machine.gpu_bytes), config.model.device
    each = "one for each process"
    if (size := config.engine.gpus) > 1:
        count += config.cluster.num_workers * (size - 1)
        each = f"{size} for each rollout worker ({config.engine.traits.gpus_option}) and one for each other process"
    wants = device.startswith("cuda") or (device == "auto" and there > 0)
    if wants and count > there:
        raise ConfigError(
            f"{_asked(config)}: that is {count} GPUs, {each}, but this machine has {there or 'none'}",
            remedy="lower them" + (", or set model.device: cpu" if size == 1 else ""),
        )


def _asked(config: RunConfig) -> str:
    """The fields that ask for processes."""
    asked = f"cluster.trainers is {config.cluster.trainers}"
    if config.cluster.own_models:
        asked += f", cluster.own_process is [{', '.join(config.cluster.own_models)}]"
    workers = config.cluster.num_workers
    return f"{asked}, cluster.rollout_workers is {workers}" if workers else asked


def seat_warnings(config: RunConfig, seats: Sequence[PlannedProcess], machine: Machine) -> Iterator[str]:
    """Warn of processes that will be slow on this machine, or may not fit."""
    if not machine.is_here:
        yield from _share_beside_training(config, machine)
        return
    if not on_this_machine(config):
        return
    seats = [seat for seat in seats if not seat.elsewhere]
    count = 0 if config.cluster.joins_cluster else config.cluster.num_processes
    if config.cluster.uses_processes and count > machine.cores:
        cores = f"{machine.cores} core{'s' * (machine.cores > 1)}"
        yield f"{_asked(config)}: {count} processes share {cores}, so they wait for each other"
    together = sum(seat.host_bytes for seat in seats)
    if machine.memory_bytes is not None and together > machine.memory_bytes:
        yield (
            f"the run may need {bytes_in_words(together)} of memory, and this machine has "
            f"{bytes_in_words(machine.memory_bytes)}"
        )
    yield from _share_beside_training(config, machine)
    for gpu, names, needed, there in _crowded(seats, machine, certain=False):
        yield f"{names} may need {bytes_in_words(needed)} of GPU {gpu}, which has {bytes_in_words(there)}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Something that a run needs more of than a described machine has: what, how much, and how much there is. `always`:
    even if all texts are short."""

    place: str
    needed: int
    there: int
    in_bytes: bool = True
    always: bool = True

    def __str__(self) -> str:
        if not self.in_bytes:
            return f"{self.place}: {self.needed} are needed, and there are {self.there}"
        needs = "needs" if self.always else "may need"
        return f"{self.place}: {needs} {bytes_in_words(self.needed)} of {bytes_in_words(self.there)}"


def shortages(config: RunConfig, seats: Sequence[PlannedProcess], machine: Machine) -> tuple[Shortage, ...]:
    """Cards and memory of a described machine that are too few for a run with the longest texts that it allows."""
    found, within_reach = [], cards_within_reach(config, machine)
    count = max((seat.gpu + 1 for seat in seats if seat.gpu is not None), default=0)
    if config.model.device.startswith("cuda"):
        count = max(count, config.cluster.num_processes)
    if count > within_reach:
        words = "cards" if within_reach == len(machine.gpu_bytes) else "cards of one node (cluster.backend)"
        found.append(Shortage(words, count, within_reach, in_bytes=False))
    found += _missing_cards(config, within_reach)
    certain = needs_of_gpus(seats, certain=True)
    for gpu, names, needed, there in _crowded(seats, machine, certain=False):
        found.append(Shortage(f"card {gpu} ({names})", needed, there, always=certain[gpu][1] > there))
    if machine.memory_bytes is not None:
        for node, needed in needs_of_nodes(seats, machine).items():
            if needed > machine.memory_bytes:
                found.append(Shortage(f"memory of node {node}", needed, machine.memory_bytes, always=False))
    return tuple(found)


def _missing_cards(config: RunConfig, within_reach: int) -> Iterator[Shortage]:
    """Yield the cards that settings name by a number beyond those within reach."""
    models = [(f"device of {reward.log_label}", reward.options.get("device")) for reward in config.all_rewards]
    for field, device in (("model.device", config.model.device), *models):
        kind, _, number = str(device).partition(":")
        if kind == "cuda" and number.isdigit() and int(number) >= within_reach:
            yield Shortage(f"cards ({field} is {device})", int(number) + 1, within_reach, in_bytes=False)


def cards_within_reach(config: RunConfig, machine: Machine) -> int:
    """Cards that the processes of the run can be on: one node's, unless Ray or torchrun starts them."""
    everywhere = config.cluster.runs_on in ("ray", "torchrun")
    return len(machine.gpu_bytes) if everywhere else machine.gpus_per_node


def _share_beside_training(config: RunConfig, machine: Machine) -> Iterator[str]:
    """Warn of an engine that takes a fixed share of its GPU beside training: the plan counts only weights and cache."""
    engine, traits = config.engine, config.engine.traits
    is_chosen = not engine.options.keys().isdisjoint(traits.share_options)
    if traits.gpu_share and engine.stays and not is_chosen and machine.gpu_bytes and config.model.device != "cpu":
        share, there = traits.gpu_share, machine.gpu_bytes[0]
        option = next(iter(traits.share_options), None)
        remedy = "" if option is None else f": set {traits.options_field}.{option} to what training leaves"
        yield (
            f"{traits.label} reserves {share:.0%} of its GPU ({bytes_in_words(share * there)} of "
            f"{bytes_in_words(there)}) beside training, however little it needs{remedy}"
        )


def _crowded(
    seats: Sequence[PlannedProcess], machine: Machine, *, certain: bool
) -> Iterator[tuple[int, str, int, int]]:
    """The GPUs that have too little for their processes: number, the processes' names, needed bytes, bytes there."""
    for gpu, (names, needed) in needs_of_gpus(seats, certain=certain).items():
        if gpu < len(machine.gpu_bytes) and needed > machine.gpu_bytes[gpu]:
            yield gpu, names, needed, machine.gpu_bytes[gpu]
