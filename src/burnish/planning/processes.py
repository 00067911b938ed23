"""The processes of a run: what each holds, and the memory it needs.

`PROCESS_BYTES`, which the model's sizes do not say, was measured on a 2-core machine with PyTorch for CPUs: the
proportional set size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from burnish.config.kinds import find_kind, load
from burnish.config.schema_run import RunConfig
from burnish.config.torchrun import TorchrunRank
from burnish.planning.machines import Machine
from burnish.planning.memory import PHASES, MemoryItem, RoleMemory, Sharding, peak_bytes, table_of
from burnish.planning.model_facts import ModelFacts, RewardFacts

Items = Sequence[MemoryItem]

PROCESS_BYTES = 300 << 20
"""A process that has imported PyTorch and transformers and made a few passes, without its model."""
BLOCK_BYTES = 16 << 20
"""As in burnish.checkpointing.tensor_file."""
ON_GPU = " on GPU "


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """One process (or several equal small ones): what it holds, its threads, its GPU (None: it computes on the CPU),
    and the memory that it needs of the host and of the GPU. Nothing is listed if the model's sizes are unknown. Memory
    that a process has on another GPU than its own is a seat too, without host memory."""

    name: str
    holds: tuple[str, ...]
    threads: int
    gpu: int | None
    host: tuple[MemoryItem, ...]
    device: tuple[MemoryItem, ...] = ()
    elsewhere: bool = False
    """True if it is on a machine of an existing Ray cluster, which may be another one."""
    small: bool = False
    """True for a process without a model, beside the command's: of rewards, tools or environments."""
    num_gpus: int = 1
    """GPUs from `gpu` on, if it has one, over which `device` is spread evenly."""

    @property
    def computes(self) -> str:
        """Threads, and the GPU if it has one."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if self.gpu is None:
            return threads
        numbers = ", ".join(str(self.gpu + more) for more in range(self.num_gpus))
        return f"GPU{'s' * (self.num_gpus > 1)} {numbers}, {threads}"

    @property
    def host_bytes(self) -> int:
        """Host memory of the phase that needs most."""
        return peak_bytes(self.host)

    @property
    def device_bytes(self) -> int:
        """Memory on each of its GPUs, in the phase that needs most; 0 without a GPU."""
        return -(-peak_bytes(self.device) // self.num_gpus)


UNKNOWN = ModelFacts(0, 0, 0, 0, 0, 0, 0, 0, None)


def seats_of(
    config: RunConfig, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> tuple[PlannedProcess, ...]:
    """The processes of the run, the command's own first. `rewards`: its reward models."""
    rewards = () if facts is None else rewards  # a part of the memory would look like all of it
    processes: type[Processes] = load(find_kind(config.kind).processes)
    seats = processes(config, facts, machine, rewards).seats()
    # Ray finds places for all processes that are started.
    joins = machine.is_here and config.cluster.joins_cluster
    placed = [replace(seat, elsewhere=joins and _is_started(seat)) for seat in seats]
    return _as_ranks(placed) if config.cluster.runs_on == "torchrun" else tuple(placed)


class Processes:
    """The processes of a run, the command's own first. A run that trains one model on given data has the
    controller and its trainers, each on the next GPU. A kind of run with more of them adds its own."""

    def __init__(
        self, config: RunConfig, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts]
    ) -> None:
        self.config, self.facts, self.machine, self.rewards = config, facts, machine, rewards
        self.on_gpu, self.threads = runs_on_gpu(config, machine), threads_each(config, machine)
        self.gpus = itertools.count() if self.on_gpu else itertools.repeat(None)
        sharding = sharding_of(config, facts, machine, rewards).sharding
        self.table = table_of(config)(config, facts or UNKNOWN, self.on_gpu, config.cluster.trainers, sharding)

    def seats(self) -> Iterator[PlannedProcess]:
        """Yield all processes, the controller first."""
        yield self.controller()
        yield from self.trainers()

    def holds(self) -> tuple[str, ...]:
        """Names of the state that a trainer holds."""
        return "reward model" if self.config.head == "score" else "policy", "optimizer"

    def controller(self) -> PlannedProcess:
        """The command's own, with the loop and the data, and a single trainer unless that has its own."""
        table, cluster = self.table, self.config.cluster
        words = "at most, whatever the model's size"
        buffer = MemoryItem("buffer of checkpoints", BLOCK_BYTES, words, ("checkpoint",), at_most=True)
        received = collected(table, cluster.own_models if cluster.trains_here else ("policy", "critic"))
        host = [*table.versions(), *received, buffer, *table.loaded_again()]
        if not cluster.trains_here:
            return self.seat("controller", ("the loop", "data"), [*host, *table.of_loop()], computes=False)
        host += saving_on_host(table, self._shared(), sends=False)
        model = [*table.of_trainers(), *saving(table, self._shared()), *table.of_loop()]
        return self.seat("controller", ("the loop", "data", *self.holds()), host, model)

    def trainers(self) -> Iterator[PlannedProcess]:
        """Yield the trainers that have their own process."""
        table, cluster = self.table, self.config.cluster
        for rank in range(0 if cluster.trains_here else cluster.trainers):
            first = rank == 0  # the one whose state is saved
            host = [*saving_on_host(table, self._shared(), sends=True)] if first else []
            model = [*table.of_trainers(), *(saving(table, self._shared()) if first else ())]
            yield self.seat(f"trainer {rank}", self.holds(), host, model)

    def _shared(self) -> list[str]:
        """Trained models of a trainer's process."""
        return [model for model in ("policy", "critic") if model not in self.config.cluster.own_models]

    def seat(
        self, name: str, holds: Sequence[str], host: Items = (), model: Items = (), *, computes: bool = True
    ) -> PlannedProcess:
        """A process with these items of the host's memory. `model`: what is on its GPU if it has one."""
        there = (host, model) if self.facts is not None else ((), ())
        process = MemoryItem("Python and its libraries", PROCESS_BYTES, "measured")
        gpu = next(self.gpus) if computes else None
        own = PlannedProcess(name, tuple(holds), self.threads, gpu, (process, *there[0]))
        return joined(own, there[1], on_gpu=gpu is not None)


def saving(table: RoleMemory, models: Sequence[str]) -> Iterator[MemoryItem]:
    """Copies of these models' state that saving makes on the device that computes. Checkpoints are written from where
    the state is, unless it rests."""
    if table.sharding == "whole" and "optimizer" in table.offload:
        yield from _largest(table, "optimizer state, copied before it rests", models)
    if table.sharding != "full" and table.config.model.lora is not None and "policy" in models:
        yield replace(table.weights("merged weights, to be saved"), phases=("checkpoint",))


def saving_on_host(table: RoleMemory, models: Sequence[str], *, sends: bool) -> Iterator[MemoryItem]:
    """Copies that saving makes in host memory, if the state is not there. `sends`: the controller writes it."""
    if (table.on_gpu or table.sharding == "full") and {"policy", "critic"} & set(models):
        yield replace(table.weights("weights, copied to be saved"), phases=("checkpoint",))
    if sends and table.sharding != "whole":
        yield from _largest(table, "optimizer state, collected from slices", models)
    if sends:
        yield from _largest(table, "optimizer state, sent to the controller", models)


def _largest(table: RoleMemory, name: str, models: Sequence[str]) -> Iterator[MemoryItem]:
    """A copy of the optimizer state of one of the models at a time; none if they have none."""
    if counts := [count for model, count in table.states() if model in models]:
        yield table.state_of(name, max(counts))


def collected(table: RoleMemory, models: Sequence[str]) -> Iterator[MemoryItem]:
    """The optimizer states of these models in a controller that gets them from other processes: all of them, and the
    message that brings the last one."""
    states = [(model, count) for model, count in table.states() if model in models]
    for model, count in states:
        whose = "" if model == "policy" else f"{model}'s "
        yield table.state_of(f"{whose}optimizer state, to be saved", count)
    for _, count in states[-1:]:
        yield table.state_of("the message with the last of them", count)


def joined(seat: PlannedProcess, items: Sequence[MemoryItem], *, on_gpu: bool) -> PlannedProcess:
    """The seat with these items, too, where they compute."""
    if not on_gpu:
        return replace(seat, host=(*seat.host, *items))
    return replace(seat, host=(*seat.host, *_rested(items)), device=(*seat.device, *items))


def _rested(items: Sequence[MemoryItem]) -> Iterator[MemoryItem]:
    """Host memory of offloaded state: it is pinned, and kept for the next time."""
    return (replace(item, name=f"{item.name}, at rest", phases=PHASES, rests=False) for item in items if item.rests)


def _is_started(seat: PlannedProcess) -> bool:
    """Return whether this is the process of a trainer, a model or a worker, and not the command's or a small one."""
    return _process_of(seat) != "controller" and not seat.small


def _process_of(seat: PlannedProcess) -> str:
    return seat.name.partition(ON_GPU)[0]


def _as_ranks(seats: Sequence[PlannedProcess]) -> tuple[PlannedProcess, ...]:
    """The seats with the rank of torchrun's that has each. Trainer 0 is next to the controller, in rank 0, like the
    small processes; every other one is a separate rank."""
    others = dict.fromkeys(_process_of(seat) for seat in seats if _is_started(seat) and seat.name != "trainer 0")
    ranks = {name: rank for rank, name in enumerate(others, 1)}
    return tuple(replace(seat, name=f"rank {ranks.get(_process_of(seat), 0)}: {seat.name}") for seat in seats)


def runs_on_gpu(config: RunConfig, machine: Machine) -> bool:
    """Return whether models of the run are on a GPU of this machine."""
    return bool(machine.gpu_bytes) and config.model.device != "cpu"


def threads_each(config: RunConfig, machine: Machine) -> int:
    """Threads of a process other than the command's: as in the run file, or an equal share. Under torchrun, which
    has told PyTorch to take one, the processes of a node share its cores."""
    if config.cluster.threads is not None:
        return config.cluster.threads
    if config.cluster.runs_on != "torchrun":
        return max(1, machine.threads // -(-config.cluster.num_processes // machine.nodes))
    here = TorchrunRank.here() if machine.is_here else None
    of_node = -(-config.cluster.num_processes // machine.nodes) if here is None else here.local_size
    return max(1, machine.cores // of_node)


@dataclass(frozen=True, slots=True)
class ShardingChoice:
    """Sharding of the trained models over the trainers, and why."""

    sharding: Sharding
    because: str


def sharding_of(
    config: RunConfig, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> ShardingChoice:
    """Resolve `cluster.sharding` for this run on this machine. `auto` never changes a result: `whole` and `optimizer`
    give the same bits."""
    cluster, asked = config.cluster, config.cluster.sharding
    if cluster.trainers == 1:
        return ShardingChoice("whole", "there is one trainer")
    if asked != "auto":
        return ShardingChoice(asked, "cluster.sharding")
    if config.optimization.optimizer == "muon":
        return ShardingChoice("whole", "auto: muon needs whole matrices")
    if facts is None:
        return ShardingChoice("whole", "auto, and the model's sizes are unknown")
    if machine.is_here and (cluster.joins_cluster or not on_this_machine(config)):
        return ShardingChoice("whole", "auto, and it is unknown what the other machines have")
    if _fits(config, "whole", facts, machine, rewards):
        return ShardingChoice("whole", "auto: the memory suffices for it")
    if _fits(config, "optimizer", facts, machine, rewards):
        return ShardingChoice("optimizer", "auto: there is too little memory for whole")
    return ShardingChoice("optimizer", "auto: there may be too little memory even for it")


def _fits(
    config: RunConfig, sharding: Sharding, facts: ModelFacts, machine: Machine, rewards: Sequence[RewardFacts]
) -> bool:
    """Return whether memory suffices for all processes together, and on each GPU for its own."""
    seats = seats_of(config.changed("cluster", sharding=sharding), facts, machine, rewards)
    together = max(needs_of_nodes(seats, machine).values(), default=0)
    on_gpus = max((needed for _, needed in needs_of_gpus(seats).values()), default=0)
    on_hosts = machine.memory_bytes is None or together <= machine.memory_bytes
    return on_hosts and on_gpus <= min(machine.gpu_bytes, default=0)


def needs_of_nodes(seats: Sequence[PlannedProcess], machine: Machine) -> dict[int, int]:
    """By the number of each node the bytes of its memory that its processes may need."""
    found: dict[int, int] = {}
    for seat in seats:
        node = machine.node_of(seat.gpu)
        found[node] = found.get(node, 0) + seat.host_bytes
    return found


def needs_of_gpus(seats: Sequence[PlannedProcess], *, certain: bool = False) -> dict[int, tuple[str, int]]:
    """By the number of each GPU the names of its processes, and the bytes of it that they need; with `certain` only
    what they need however short the texts are."""
    found: dict[int, tuple[str, int]] = {}
    for seat in seats:
        for gpu in range(seat.gpu, seat.gpu + seat.num_gpus) if seat.gpu is not None else ():
            before, num_bytes = found.get(gpu, ("", 0))
            names_there = f"{before} and {_process_of(seat)}" if before else _process_of(seat)
            found[gpu] = names_there, num_bytes + -(-peak_bytes(seat.device, certain=certain) // seat.num_gpus)
    return found


def on_this_machine(config: RunConfig) -> bool:
    """Return whether all processes of the run are known to be on this machine before they start. They are not if
    torchrun starts them on several nodes, or is yet to start."""
    if config.cluster.runs_on != "torchrun":
        return True
    here = TorchrunRank.here()
    return here is not None and here.on_one_machine
