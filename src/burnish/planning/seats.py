"""The processes of a run: what each holds, and the memory it needs.

Numbers that the model's sizes do not say were measured on a 2-core machine with PyTorch for CPUs (proportional set
sizes): `PROCESS_BYTES`, `REWARD_WORKER_BYTES` and `CONVERSATION_PROCESS_BYTES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from burnish.config import names
from burnish.config.domains import domain_settings, responses_per_step
from burnish.config.schema import RlConfig, RmConfig
from burnish.config.torchrun import TorchrunRank
from burnish.planning.machines import Machine
from burnish.planning.memory import (
    PHASES,
    MemoryItem,
    Sharding,
    Table,
    Trained,
    bytes_in_words,
    peak_bytes,
    reward_items,
)
from burnish.planning.model_facts import ModelFacts, RewardFacts

ConfigT = TypeVar("ConfigT", bound=Trained)
Items = Sequence[MemoryItem]

PROCESS_BYTES = 300 << 20
"""A process that has imported PyTorch and transformers and made a few passes, without its model."""
REWARD_WORKER_BYTES = 16 << 20
"""A process that runs rewards that import nothing large."""
CONVERSATION_PROCESS_BYTES = 6 << 20
"""A process that runs the tools or the environment of one conversation, if these keep little."""
BLOCK_BYTES = 16 << 20
"""As in burnish.checkpointing.tensor_file."""
_ON_GPU = " on GPU "
_WORKS, _TALKS = "reward worker", "conversation process"


@dataclass(frozen=True, slots=True)
class Seat:
    """One process (or several equal small ones): what it holds, its threads, its GPU (None: it computes on the CPU),
    and the memory that it needs of the host and of the GPU. Nothing is listed if the model's sizes are unknown. What a
    process has on a GPU other than its own is a seat too, without memory of the host."""

    name: str
    holds: tuple[str, ...]
    threads: int
    gpu: int | None
    host: tuple[MemoryItem, ...]
    device: tuple[MemoryItem, ...] = ()
    elsewhere: bool = False
    """On a machine of an existing Ray cluster, which may be another one."""
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
        """Of the phase that needs most."""
        return peak_bytes(self.host)

    @property
    def device_bytes(self) -> int:
        """Of each of its GPUs, in the phase that needs most; 0 without a GPU."""
        return -(-peak_bytes(self.device) // self.num_gpus)


_UNKNOWN = ModelFacts(0, 0, 0, 0, 0, 0, 0, 0, None)


def seats_of(
    config: Trained, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> tuple[Seat, ...]:
    """The processes of the run, the command's own first. `rewards`: its reward models."""
    rewards = () if facts is None else rewards  # what is not everything would look like it
    seats = list(_with_models(config, facts, machine, rewards))
    if isinstance(config, RlConfig):
        count = config.scoring.workers
        item = MemoryItem("processes", count * REWARD_WORKER_BYTES, f"{count} x {bytes_in_words(REWARD_WORKER_BYTES)}")
        seats.append(Seat(f"{count} {_WORKS}{'s' * (count > 1)}", ("rewards",), 1, None, (item,)))
        seats += _conversation_seats(config)
    # Ray finds places for all processes that are started.
    joins = machine.is_here and config.cluster.joins_cluster
    placed = [replace(seat, elsewhere=joins and _is_started(seat)) for seat in seats]
    return _as_ranks(placed) if config.cluster.runs_on == "torchrun" else tuple(placed)


def _with_models(
    config: Trained, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts]
) -> Iterator[Seat]:
    """The processes that hold models, and the controller in any case. Each computes on the next GPU."""
    cluster, threads, on_gpu = config.cluster, threads_each(config, machine), runs_on_gpu(config, machine)
    sharding = sharding_of(config, facts, machine, rewards).sharding
    table = Table(config, facts or _UNKNOWN, on_gpu, cluster.trainers, sharding)
    gpus = itertools.count() if on_gpu else itertools.repeat(None)

    def seat(name: str, holds: Sequence[str], host: Items = (), model: Items = (), *, computes: bool = True) -> Seat:
        there = (host, model) if facts is not None else ((), ())
        return _seat(name, tuple(holds), threads, next(gpus) if computes else None, *there)

    here, samples_here = cluster.trains_here, isinstance(config, RlConfig) and not config.cluster.rollout_workers
    alone = config.cluster.own_process if isinstance(config, RlConfig) else ()
    shared = [model for model in ("policy", "critic") if model not in alone]
    engine = [*table.engine()]
    trained = [*table.trained(), *(engine if samples_here else ())]
    of_loop = engine if isinstance(config, RmConfig) else []  # it samples from the policy that scores are measured on
    words = "at most, whatever the model's size"
    buffer = MemoryItem("buffer of checkpoints", BLOCK_BYTES, words, ("checkpoint",), at_most=True)
    collected = table.collected(*(alone if here else ("policy", "critic")))
    host = [*table.versions(), *collected, buffer, *table.loaded_again()]
    if here:
        holds = ("the loop", "data", *_trained(config))
        host += table.saving_on_host(*shared, sends=False)
        controller = seat("controller", holds, host, [*trained, *table.saving(*shared), *of_loop])
    else:
        controller = seat("controller", ("the loop", "data"), [*host, *of_loop], computes=False)
    if isinstance(config, RlConfig) and "reward_model" not in config.cluster.own_process:
        yield from _with_judges(controller, config, machine, rewards)
    else:
        yield controller
    for rank in range(0 if here else cluster.trainers):
        first = rank == 0  # the one whose state is saved
        host = [*table.saving_on_host(*shared, sends=True)] if first else []
        yield seat(f"trainer {rank}", _trained(config), host, [*trained, *(table.saving(*shared) if first else ())])
    if not isinstance(config, RlConfig):
        return
    for model, name in zip(config.cluster.own_process, config.cluster.own_names, strict=True):
        if model == "reward_model":
            yield from _with_judges(seat(name, ()), config, machine, rewards)
        else:
            whole = Table(config, facts or _UNKNOWN, on_gpu)
            host = [*whole.saving_on_host(model, sends=True)]
            yield seat(name, (name,), host, [*whole.alone(model), *whole.saving(model)])
    for number in range(config.cluster.rollout_workers):
        holds = (f"{config.rollout.engine} engine with a copy of the weights",)
        copy, on_host = [table.weights("weights")], config.rollout.engine == "vllm"  # which has its own on the GPU
        worker = seat(f"rollout worker {number}", holds, copy * on_host, [*copy * (not on_host), *engine])
        for _ in range(config.rollout.gpus_per_engine - 1):
            next(gpus)
        yield replace(worker, num_gpus=config.rollout.gpus_per_engine)


def _conversation_seats(config: RlConfig) -> Iterator[Seat]:
    """The processes of environments, of agents and of tools, as many as conversations may be held at the same time."""
    talks = [domain.conversation for domain in domain_settings(config) if domain.conversation is not None]
    if held := [talk for talk in talks if talk.agent is not None or talk.own_tools or talk.environment is not None]:
        count = min(max(talk.max_open for talk in held), responses_per_step(config))
        holds = ("tools, environments",)
        yield Seat(f"{count} {_TALKS}{'es' * (count > 1)}", holds, 1, None, (_processes(count),))


def _processes(count: int) -> MemoryItem:
    """So many processes of conversations."""
    each = CONVERSATION_PROCESS_BYTES
    return MemoryItem("processes", count * each, f"{count} x {bytes_in_words(each)}", ("sampling",), at_most=True)


def _with_judges(seat: Seat, config: RlConfig, machine: Machine, rewards: Sequence[RewardFacts]) -> Iterator[Seat]:
    """The seat with reward models, and one for each GPU other than its own on which it has some."""
    count = sum(reward.is_model for reward in config.all_rewards)
    words = ("reward model",) if count == 1 else (f"{count} reward models",) if count else ()
    items: dict[int | None, list[MemoryItem]] = {}
    for reward in rewards:
        items.setdefault(_gpu_of(reward, seat, config, machine), []).extend(reward_items(config, reward))
    for gpu in (None, seat.gpu):
        seat = _joined(seat, items.pop(gpu, []), on_gpu=gpu is not None)
    yield replace(seat, holds=(*seat.holds, *words))
    for gpu, there in sorted(items.items(), key=str):
        yield _joined(Seat(f"{seat.name}{_ON_GPU}{gpu}", words, seat.threads, gpu, ()), there, on_gpu=True)


def _gpu_of(reward: RewardFacts, seat: Seat, config: RlConfig, machine: Machine) -> int | None:
    """The GPU that a reward model of this process scores on; None for the CPU. The controller sees all of them."""
    kind, _, number = reward.device.partition(":")
    if kind not in ("auto", "cuda") or not machine.gpu_bytes:
        return None
    if seat.gpu is not None and "reward_model" in config.cluster.own_process:
        return seat.gpu
    gpu = int(number) if number.isdigit() else 0
    return gpu if gpu < len(machine.gpu_bytes) else None  # loading it says that there is no such GPU


def _joined(seat: Seat, items: Sequence[MemoryItem], *, on_gpu: bool) -> Seat:
    """The seat with these items, too, where they compute."""
    if not on_gpu:
        return replace(seat, host=(*seat.host, *items))
    return replace(seat, host=(*seat.host, *_rested(items)), device=(*seat.device, *items))


def _rested(items: Sequence[MemoryItem]) -> Iterator[MemoryItem]:
    """What a GPU gives up while it rests is in pinned host memory, which is kept for the next time."""
    return (replace(item, name=f"{item.name}, at rest", phases=PHASES, rests=False) for item in items if item.rests)


def _is_started(seat: Seat) -> bool:
    """Whether it is the process of a trainer, a model or a worker, and not the command's, of rewards or of
    conversations."""
    return _process_of(seat) != "controller" and _WORKS not in seat.name and _TALKS not in seat.name


def _process_of(seat: Seat) -> str:
    return seat.name.partition(_ON_GPU)[0]


def _as_ranks(seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """The seats with the rank of torchrun's that has each. Trainer 0 is next to the controller, in rank 0, like the
    small processes; every other one is a rank of its own."""
    others = dict.fromkeys(_process_of(seat) for seat in seats if _is_started(seat) and seat.name != "trainer 0")
    ranks = {name: rank for rank, name in enumerate(others, 1)}
    return tuple(replace(seat, name=f"rank {ranks.get(_process_of(seat), 0)}: {seat.name}") for seat in seats)


def runs_on_gpu(config: Trained, machine: Machine) -> bool:
    """Whether models of the run are on a GPU of this machine."""
    return bool(machine.gpu_bytes) and config.model.device != "cpu"


def _seat(
    name: str,
    holds: tuple[str, ...],
    threads: int,
    gpu: int | None,
    host: Sequence[MemoryItem],
    model: Sequence[MemoryItem],
) -> Seat:
    """`model`: what is on the GPU if the process has one."""
    process = MemoryItem("Python and its libraries", PROCESS_BYTES, "measured")
    return _joined(Seat(name, holds, threads, gpu, (process, *host)), model, on_gpu=gpu is not None)


def threads_each(config: Trained, machine: Machine) -> int:
    """Threads of a process other than the command's: those of the run file, or an equal share. Under torchrun, which
    has told PyTorch to take one, the processes of a node share its cores."""
    if config.cluster.threads is not None:
        return config.cluster.threads
    if config.cluster.runs_on != "torchrun":
        return max(1, machine.threads // -(-config.cluster.num_processes // machine.nodes))
    here = TorchrunRank.here() if machine.is_here else None
    of_node = -(-config.cluster.num_processes // machine.nodes) if here is None else here.local_size
    return max(1, machine.cores // of_node)


@dataclass(frozen=True, slots=True)
class Choice:
    """What each trainer keeps, and why."""

    sharding: Sharding
    because: str


def sharding_of(
    config: Trained, facts: ModelFacts | None, machine: Machine, rewards: Sequence[RewardFacts] = ()
) -> Choice:
    """What `cluster.sharding` means for this run on this machine. `auto` never changes a result: `whole` and
    `optimizer` give the same bits."""
    cluster, asked = config.cluster, config.cluster.sharding
    if cluster.trainers == 1:
        return Choice("whole", "there is one trainer")
    if asked != "auto":
        return Choice(asked, "cluster.sharding")
    if facts is None:
        return Choice("whole", "auto, and the model's sizes are unknown")
    if machine.is_here and (cluster.joins_cluster or not on_this_machine(config)):
        return Choice("whole", "auto, and it is unknown what the other machines have")
    if _fits(config, "whole", facts, machine, rewards):
        return Choice("whole", "auto: the memory suffices for it")
    if _fits(config, "optimizer", facts, machine, rewards):
        return Choice("optimizer", "auto: there is too little memory for whole")
    return Choice("optimizer", "auto: there may be too little memory even for it")


def with_sharding(config: ConfigT, sharding: Sharding) -> ConfigT:
    """The run file with this `cluster.sharding`."""
    cluster = config.cluster.model_copy(update={"sharding": sharding})
    copy: ConfigT = config.model_copy(update={"cluster": cluster})  # type: ignore[assignment]
    return copy


def _fits(
    config: Trained, sharding: Sharding, facts: ModelFacts, machine: Machine, rewards: Sequence[RewardFacts]
) -> bool:
    """Whether all processes together have what they may need, and each GPU what its processes may."""
    seats = seats_of(with_sharding(config, sharding), facts, machine, rewards)
    together = max(needs_of_nodes(seats, machine).values(), default=0)
    on_gpus = max((needed for _, needed in needs_of_gpus(seats).values()), default=0)
    on_hosts = machine.memory_bytes is None or together <= machine.memory_bytes
    return on_hosts and on_gpus <= min(machine.gpu_bytes, default=0)


def needs_of_nodes(seats: Sequence[Seat], machine: Machine) -> dict[int, int]:
    """By the number of each node the bytes of its memory that its processes may need."""
    found: dict[int, int] = {}
    for seat in seats:
        node = machine.node_of(seat.gpu)
        found[node] = found.get(node, 0) + seat.host_bytes
    return found


def needs_of_gpus(seats: Sequence[Seat], *, certain: bool = False) -> dict[int, tuple[str, int]]:
    """By the number of each GPU the names of its processes, and the bytes of it that they need; with `certain` only
    what they need however short the texts are."""
    found: dict[int, tuple[str, int]] = {}
    for seat in seats:
        for gpu in range(seat.gpu, seat.gpu + seat.num_gpus) if seat.gpu is not None else ():
            before, num_bytes = found.get(gpu, ("", 0))
            names_there = f"{before} and {_process_of(seat)}" if before else _process_of(seat)
            found[gpu] = names_there, num_bytes + -(-peak_bytes(seat.device, certain=certain) // seat.num_gpus)
    return found


def _trained(config: Trained) -> tuple[str, ...]:
    """What a trainer holds, in words."""
    if not isinstance(config, RlConfig):
        return ("reward model" if isinstance(config, RmConfig) else "policy", "optimizer")
    found = ["policy", "optimizer"]
    own = config.cluster.own_process
    if config.algorithm.kl_in != "none" and "reference" not in own:
        found.append("reference" if config.model.lora is None else "reference (adapters off)")
    if config.algorithm.estimator in names.CRITIC_ESTIMATORS and "critic" not in own:
        found.append(f"{config.critic.kind} critic")
    if not config.cluster.rollout_workers:
        found.append(f"{config.rollout.engine} engine with the policy's weights")
    return tuple(found)


def on_this_machine(config: Trained) -> bool:
    """Whether all processes of the run are on this machine, as far as it is known before they start: not those that
    torchrun starts on several nodes, or is yet to start."""
    if config.cluster.runs_on != "torchrun":
        return True
    here = TorchrunRank.here()
    return here is not None and here.on_one_machine
