"""A run on several processes of this machine: who is started, and who asks whom.

The command's own process is the controller: it holds the loop, the data, the rewards and the run's folder. Trainers and
rollout workers are processes that it starts, asks, and ends.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import torch
from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.distributed.handles import RemoteCritic, RemotePolicy, RemoteReference
from burnish.distributed.pool import RolloutPool, Worker
from burnish.distributed.processes import ProcessRole, RoleLostError, RoleProcess
from burnish.distributed.team import Meeting, joined
from burnish.distributed.trainers import Seat, TeamRole, start_all
from burnish.errors import ConfigError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel, load_outline, num_embeddings
from burnish.observability.console import say
from burnish.trainers.path_record import record_paths
from burnish.trainers.result import RunResult
from burnish.trainers.rl.cast import Cast, Inline, Players
from burnish.trainers.rl.elsewhere import engine_role, trained_roles
from burnish.trainers.rl.objective_setup import ObjectiveElsewhere
from burnish.trainers.rl.opening import open_model
from burnish.trainers.rl.preflight import check_fit
from burnish.trainers.rl.roles import Roles, build_roles
from burnish.trainers.rl.run import train_rl as train_rl_with

START_SECONDS = 600.0
"""Until a process has loaded its model: a large one may come from a slow disk."""


def train_rl(config: RlConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train with as many processes as the run file asks for; see `burnish.trainers.rl.run.train_rl`.

    When a trainer is lost, all of them are started again from the newest checkpoint, `cluster.restarts` times at most:
    the steps since then are made again, with the same numbers.
    """
    for attempt in count(1):
        try:
            return train_rl_with(config, console=console, accept_changes=accept_changes, cast=cast_of(config))
        except RoleLostError as error:
            if attempt > config.cluster.restarts:
                raise
            say(console, (f"{error}", "the trainers are started again from the newest checkpoint"))
    raise AssertionError("count() does not end")


def cast_of(config: RlConfig) -> Cast:
    """Who plays the roles of this run. ConfigError for several processes on a system on which they cannot work."""
    if config.cluster.uses_processes and platform.system() != "Linux":
        raise ConfigError(
            f"cluster asks for several processes, which share memory in a way that {platform.system()} does not have",
            remedy="run on Linux, or set cluster.trainers: 1, cluster.rollout_workers: 0 and cluster.backend: auto",
        )
    return Processes() if config.cluster.uses_processes else Inline()


@dataclass(frozen=True, slots=True)
class Processes:
    """`Cast`: trainers and rollout workers in processes of this machine. One trainer is the command's own process."""

    def open_model(self, config: RlConfig, paths: FastPaths, console: Console) -> AbstractContextManager[LoadedModel]:
        """See `Cast`."""
        return open_model(config, paths, console) if trains_here(config) else _outline(config)

    @contextmanager
    def open_players(
        self, config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console
    ) -> Iterator[Players]:
        """See `Cast`."""
        threads, stacks = _threads(config), _stacks_folder(config)
        workers: list[Worker] = []
        with ExitStack() as stack:
            if trains_here(config):
                roles = build_roles(config, loaded, Lanes(config.cluster.num_lanes))
                record_paths(Path(config.output), paths)
                say(console, paths.lines())
            else:
                team = stack.enter_context(_trainers(config, threads, stacks, console))
                roles = _remote_roles(config, team)
                workers = [
                    Worker(process.role("engine", seconds=config.cluster.stall_seconds), policy="policy")
                    for process in team
                    if "engine" in process.roles
                ]
            if config.cluster.rollout_workers:
                workers = stack.enter_context(_rollout_workers(config, threads, stacks, console))
            pool = RolloutPool(
                workers,
                lanes=config.cluster.num_lanes,
                restarts=config.cluster.restarts,
                say=lambda text: say(console, (text,)),
            )
            stack.enter_context(pool)
            yield Players(roles, pool, None if trains_here(config) else ObjectiveElsewhere.of(config))


def trains_here(config: RlConfig) -> bool:
    """Whether the command's own process is the trainer."""
    return config.cluster.trainers == 1 and config.cluster.rollout_workers > 0


@contextmanager
def trainer_seat(config: RlConfig, meeting: Meeting) -> Iterator[dict[str, object]]:
    """The roles of one trainer. The first one chooses the fast paths, and the others take the same."""
    on_gpu = torch.cuda.is_available() and config.model.device != "cpu"
    samples = config.cluster.rollout_workers == 0
    with joined(meeting, lanes=config.cluster.num_lanes, on_gpu=on_gpu) as team:
        lanes = Lanes(config.cluster.num_lanes, team)
        chosen = None if team.rank == 0 else FastPaths(team.exchange(None)[0])
        with trained_roles(config, chosen, lanes, samples=samples) as roles:
            if team.rank == 0:
                paths = FastPaths(roles["ways"].record)  # type: ignore[attr-defined]
                record_paths(Path(config.output), paths)
                team.exchange(paths.record())
            yield roles


@contextmanager
def _outline(config: RlConfig) -> Iterator[LoadedModel]:
    loaded = load_outline(config.model, plain=config.debug.plain)
    check_fit(config, loaded.context_length, num_embeddings(loaded.model))
    yield loaded


@contextmanager
def _trainers(config: RlConfig, threads: int, stacks: Path, console: Console) -> Iterator[tuple[RoleProcess, ...]]:
    """The trainers' processes, which have met and loaded their models."""
    size = config.cluster.trainers
    with tempfile.TemporaryDirectory(prefix="burnish-") as folder:
        meetings = [
            Meeting.at_file(rank, size, Path(folder) / "meeting", seconds=config.cluster.stall_seconds)
            for rank in range(size)
        ]
        names = [f"trainer {meeting.rank}" for meeting in meetings]
        seats = [
            Seat(name, trainer_seat, (config, meeting), _devices(config, name))
            for name, meeting in zip(names, meetings, strict=True)
        ]
        team = start_all(seats, seconds=START_SECONDS, threads=threads, stacks=stacks)
        try:
            say(console, team[0].role("ways", seconds=START_SECONDS).ask("lines"))
            yield tuple(team)
        finally:
            for process in team:
                process.close()


def _remote_roles(config: RlConfig, team: tuple[RoleProcess, ...]) -> Roles:
    """Handles to the models that all trainers have."""
    there = {name: TeamRole(team, name, config.cluster.stall_seconds) for name in team[0].roles}
    return Roles(
        RemotePolicy(there["policy"]),
        RemoteReference(there["reference"]) if "reference" in there else None,
        RemoteCritic(there["critic"]) if "critic" in there else None,
    )


@contextmanager
def _rollout_workers(config: RlConfig, threads: int, stacks: Path, console: Console) -> Iterator[list[Worker]]:
    """Workers with an engine each. The first one chooses how to decode, and the others take the same way."""
    names = [f"rollout worker {number}" for number in range(config.cluster.rollout_workers)]
    begun: list[RoleProcess] = []
    try:
        for batch in (names[:1], names[1:]):
            seats = [Seat(name, engine_role, (config,), _devices(config, name, names)) for name in batch]
            begun += start_all(seats, seconds=START_SECONDS, threads=threads, stacks=stacks)
            if batch == names[:1]:
                ways = begun[0].role("ways", seconds=START_SECONDS)
                record_paths(Path(config.output), FastPaths(ways.ask("record")))
                say(console, ways.ask("lines"))
    except BaseException:
        for process in begun:
            process.kill()
        raise
    yield [
        Worker(
            process.role("engine", seconds=config.cluster.stall_seconds),
            partial(_start_worker, config, process.name, _devices(config, process.name, names), threads, stacks),
        )
        for process in begun
    ]


def _start_worker(
    config: RlConfig, name: str, environment: Mapping[str, str], threads: int, stacks: Path
) -> ProcessRole:
    """A rollout worker's process, started again."""
    process = RoleProcess(
        name, engine_role, config, seconds=START_SECONDS, threads=threads, environment=environment, stacks=stacks
    )
    return process.role("engine", seconds=config.cluster.stall_seconds)


def _devices(config: RlConfig, name: str, workers: Sequence[str] = ()) -> dict[str, str]:
    """What a process sees of this machine's GPUs: one each, trainers first. Nothing where there are none."""
    count = torch.cuda.device_count() if config.model.device != "cpu" else 0
    if not count:
        return {}
    order = [f"trainer {rank}" for rank in range(config.cluster.trainers)] + list(workers)
    return {"CUDA_VISIBLE_DEVICES": str(order.index(name))}


def _threads(config: RlConfig) -> int:
    """Threads of each process: those of the run file, or an equal share of the cores."""
    processes = config.cluster.trainers + config.cluster.rollout_workers
    return config.cluster.threads or max(1, torch.get_num_threads() // processes)


def _stacks_folder(config: RlConfig) -> Path:
    folder = Path(config.output) / "stacks"
    folder.mkdir(exist_ok=True)
    return folder
