"""A run of `burnish rl` on several processes: who is started, and who asks whom.

The command's own process is the controller: it holds the loop, the data, the rewards and the run's folder. The others
(trainers, models with a process of their own, rollout workers) are processes of this machine or actors of a Ray
cluster, which it starts, asks, and ends, or processes that torchrun has started.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import torch
from rich.console import Console

from burnish.config.schema import RlConfig, RmConfig, SftConfig
from burnish.config.torchrun import TorchrunRank, check_world
from burnish.distributed.handles import RemoteCritic, RemotePolicy, RemoteReference, TeamRole
from burnish.distributed.launching import Crew, Launcher, Seat, Site, ThisMachine, start_all
from burnish.distributed.peers import START_SECONDS, Peer, ProcessRole, RoleLostError
from burnish.distributed.pool import RolloutPool, Worker
from burnish.distributed.ranks import RankSite
from burnish.distributed.reward_models import ROLE, RewardModelProcess
from burnish.distributed.team import Meeting, joined
from burnish.errors import ConfigError
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.forward.team import Slices
from burnish.models.critic import SeparateCritic
from burnish.models.loading import LoadedModel
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.models.reward_learner import RewardLearner
from burnish.observability.console import say
from burnish.outside.plugins import is_outside
from burnish.trainers.interrupt import present_watch, watching
from burnish.trainers.placement import check_placement, placed, threads_of
from burnish.trainers.result import RunResult
from burnish.trainers.rl.elsewhere import engine_role, own_role, reward_role, trained_roles
from burnish.trainers.rl.objective_setup import ObjectiveElsewhere
from burnish.trainers.rl.opening import Players, open_players
from burnish.trainers.rl.roles import ALONE, Beside, Roles, build_roles
from burnish.trainers.rl.run import train_rl as train_rl_with
from burnish.trainers.workplace import record_paths, recorded_ways

RunOfSeveral = RlConfig | SftConfig | RmConfig
"""Run files with a `cluster` section."""

CUT = (LocalPolicy, FrozenReference, SeparateCritic, RewardLearner)
"""Roles that keep slices of their weights with `cluster.sharding: full`."""
OpenRoles = Callable[..., AbstractContextManager[Mapping[str, object]]]
"""(config, paths, lanes) to the roles of a trainer, in its process; `ways` is one of them. `paths`: None chooses."""


def train_rl(config: RlConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train with as many processes as the run file asks for; see `burnish.trainers.rl.run.train_rl`.

    When a trainer is lost, all of them are started again from the newest checkpoint, `cluster.restarts` times at most:
    the steps since then are made again, with the same numbers.
    """
    with shared_work(config, console) as site:
        opener = partial(open_processes, site) if config.cluster.uses_processes else open_players
        train = partial(train_rl_with, config, console=console, accept_changes=accept_changes, opener=opener)
        return with_restarts(train, config, console)


def with_restarts(train: Callable[[], RunResult], config: RunOfSeveral, console: Console) -> RunResult:
    """Train, and again from the newest checkpoint when a trainer is lost, unless the run has been asked to stop."""
    watch = present_watch()  # one for all attempts, so that a request to stop outlives the attempt that it came in
    for attempt in count(1):
        try:
            with watching(watch):
                return train()
        except RoleLostError as error:
            if watch.stop or attempt > config.cluster.restarts or config.cluster.runs_on == "torchrun":
                raise  # torchrun starts all of its processes again, or none
            then = "all processes are started again from the newest checkpoint: nothing to do"
            say(console, (f"{error.message}; {then}",))
    raise AssertionError("count() does not end")


@contextmanager
def shared_work(config: RunOfSeveral, console: Console) -> Iterator[Site]:
    """Around a run: where its other processes are to be. This process, too, has the threads that the run file asks for,
    or an equal share of this machine's.

    ConfigError for several processes on a system on which they cannot work or a machine that cannot have them, for Ray
    where it is not installed, and for another number of processes than torchrun has started.
    """
    rank = TorchrunRank.here()
    check_world(config.cluster, rank)
    if config.cluster.uses_processes and platform.system() != "Linux":
        raise ConfigError(
            f"cluster asks for several processes, which need Linux, and this is {platform.system()}",
            remedy="run on Linux, or ask for a single process (cluster.trainers: 1, no rollout workers) and set "
            "cluster.backend: auto",
        )
    if config.cluster.uses_processes:
        say(console, check_placement(config))
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of(config))
    try:
        with _site(config, rank) as site:
            yield site
    finally:
        torch.set_num_threads(before)


def _site(config: RunOfSeveral, rank: TorchrunRank | None) -> AbstractContextManager[Site]:
    match config.cluster.runs_on:
        case "ray":
            return _ray_site()
        case "torchrun":
            assert rank is not None, "checked above"
            return RankSite(rank)
        case _:
            return nullcontext(ThisMachine())


def _ray_site() -> AbstractContextManager[Site]:
    try:
        from burnish.distributed.ray_workers import RaySite
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError(
            "cluster.backend is ray, but Ray is not installed", remedy="pip install 'burnish[ray]'"
        ) from error
    return RaySite()


@contextmanager
def open_processes(
    site: Site, config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console
) -> Iterator[Players]:
    """`OpenPlayers` with trainers and rollout workers in other processes. A single trainer may be the command's own."""
    here, crew = config.cluster.trains_here, _crew(config, console)
    workers: list[Worker] = []
    team: tuple[Peer, ...] = ()
    with ExitStack() as stack:
        launcher = stack.enter_context(site.reserved(crew))
        crew.say(f"starting {crew.in_words()}")
        if here:
            roles = build_roles(config, loaded, Lanes(config.cluster.num_lanes))
            record_paths(Path(config.output), paths)
            say(console, paths.lines())
        else:
            roles_of_all = partial(trained_roles, samples=not crew.workers)
            team = stack.enter_context(open_team(config, crew, roles_of_all, launcher, console))
            roles = _remote_roles(config, team)
            workers = [
                Worker(process.role("engine", seconds=config.cluster.stall_seconds), policy="policy")
                for process in team
                if "engine" in process.roles
            ]
        own = stack.enter_context(own_processes(config, crew, launcher, console))
        if crew.workers:
            workers = stack.enter_context(_rollout_workers(config, crew, launcher, console))
        pool = RolloutPool(
            workers,
            lanes=config.cluster.num_lanes,
            restarts=config.cluster.restarts,
            say=crew.say,
            write=launcher.write,
            partial=config.partial,
            rests="rollout_engine" in config.cluster.offload,
        )
        stack.enter_context(pool)
        objective = None if here else ObjectiveElsewhere.of(config)
        yield Players(
            own.added_to(roles),
            pool,
            objective,
            aside=pool if crew.workers else None,
            beside=own.beside,
            reward_models=own.reward_models,
            standing=lambda: [
                *((process.name, process.standing) for process in team),
                *own.standing(),
                *pool.standing(),
            ],
        )


def _crew(config: RlConfig, console: Console) -> Crew:
    """The processes that the run file asks for."""
    named = (config.algorithm.estimator, config.algorithm.loss, config.rollout.engine)
    return crew_of(
        config,
        console,
        models=config.cluster.own_names,
        workers=tuple(f"rollout worker {number}" for number in range(config.cluster.rollout_workers)),
        plugins=tuple(name for name in named if is_outside(name)),
        workers_log=config.rollout.engine == "vllm",
        worker_gpus=config.rollout.gpus_per_engine,
        trainers=0 if config.cluster.trains_here else config.cluster.trainers,
    )


def crew_of(
    config: RunOfSeveral,
    console: Console,
    *,
    trainers: int,
    models: tuple[str, ...] = (),
    workers: tuple[str, ...] = (),
    plugins: tuple[str, ...] = (),
    workers_log: bool = False,
    worker_gpus: int = 1,
) -> Crew:
    """So many trainers, these models with a process of their own, these rollout workers."""
    output = Path(config.output).absolute()
    stacks = output / "stacks"
    stacks.mkdir(exist_ok=True)
    names = tuple(f"trainer {rank}" for rank in range(trainers))
    on_gpu = config.model.device != "cpu"
    return Crew(
        names,
        models,
        workers,
        config.cluster,
        on_gpu,
        output,
        stacks,
        plugins,
        workers_log,
        worker_gpus,
        say=lambda text: say(console, (text,)),
    )


@contextmanager
def trainer_seat(open_roles: OpenRoles, config: RunOfSeveral, meeting: Meeting) -> Iterator[Mapping[str, object]]:
    """The roles of one trainer. The first one chooses the fast paths, and the others take the same."""
    on_gpu = torch.cuda.is_available() and config.model.device != "cpu"
    with joined(meeting, on_gpu=on_gpu) as team:
        # With `full`, too: before weights are cut, none has more masters than it will have.
        slices = None if config.cluster.sharding == "whole" else Slices(team)
        lanes = Lanes(config.cluster.num_lanes, team, slices)
        chosen = None if team.rank == 0 else FastPaths(team.exchange(None)[0])
        with open_roles(config, chosen, lanes) as roles:
            if slices is not None and config.cluster.sharding == "full":
                from burnish.distributed.fully import fully_sharded  # FSDP takes half a second to import

                slices.forget()
                for role in roles.values():
                    if isinstance(role, CUT):
                        role.share_weights(fully_sharded)  # last: fast paths are tried on whole weights
            if team.rank == 0:
                paths = FastPaths(roles["ways"].record)  # type: ignore[attr-defined]
                record_paths(Path(config.output), paths)
                team.exchange(paths.record())
            yield roles


@contextmanager
def open_team(
    config: RunOfSeveral, crew: Crew, open_roles: OpenRoles, launcher: Launcher, console: Console
) -> Iterator[tuple[Peer, ...]]:
    """The trainers' processes, which have met and loaded their models. All of them have the roles of `open_roles`."""
    there = placed(config).model_copy(update={"output": str(crew.output)})  # their current folder may be another one
    # They first wait for the one that loads its model and tries the fast paths, as long as any of them may for itself.
    seconds = max(config.cluster.stall_seconds, START_SECONDS)
    with launcher.meetings(len(crew.trainers), seconds=seconds) as meetings:
        seats = [
            Seat(name, trainer_seat, (open_roles, there, meeting))
            for name, meeting in zip(crew.trainers, meetings, strict=True)
        ]
        team = start_all(launcher, seats)
        try:
            say(console, team[0].role("ways", seconds=START_SECONDS).ask("lines"))
            yield tuple(team)
        except RoleLostError:
            for process in team:  # nothing is left to release in peace, and whoever starts the run again waits
                process.kill()
            raise
        finally:
            for process in team:
                process.close()


def _remote_roles(config: RlConfig, team: tuple[Peer, ...]) -> Roles:
    """Handles to the models that all trainers have."""
    cuts = config.cluster.sharding == "full"
    there = {name: TeamRole(team, name, config.cluster.stall_seconds, cuts) for name in team[0].roles}
    return Roles(
        RemotePolicy(there["policy"]),
        RemoteReference(there["reference"]) if "reference" in there else None,
        RemoteCritic(there["critic"]) if "critic" in there else None,
    )


@contextmanager
def _rollout_workers(config: RlConfig, crew: Crew, launcher: Launcher, console: Console) -> Iterator[list[Worker]]:
    """Workers with an engine each. The first one chooses how to decode, and the others take the same way."""
    there = config.model_copy(update={"output": str(crew.output)})  # as in `open_team`

    def seat(name: str) -> Seat:
        return Seat(name, engine_role, (there, recorded_ways(crew.output)))

    def again(name: str, given_up: threading.Event) -> ProcessRole:
        process = launcher.start(replace(seat(name), given_up=given_up))
        return process.role("engine", seconds=config.cluster.stall_seconds)

    begun: list[Peer] = []
    try:
        begun += start_all(launcher, [seat(crew.workers[0])])
        ways = begun[0].role("ways", seconds=START_SECONDS)
        record_paths(crew.output, FastPaths(ways.ask("record")))
        say(console, ways.ask("lines"))
        begun += start_all(launcher, [seat(name) for name in crew.workers[1:]])
    except BaseException:
        for process in begun:
            process.kill()
        raise
    starts_again = config.cluster.runs_on != "torchrun"
    yield [
        Worker(
            process.role("engine", seconds=config.cluster.stall_seconds),
            partial(again, process.name) if starts_again else None,
        )
        for process in begun
    ]


@dataclass(frozen=True, slots=True)
class OwnProcesses:
    """Models of a run with a process of their own (`cluster.own_process`).

    roles: of reference and critic, by their names. seconds: how long a request to one may take.
    """

    roles: Mapping[str, Peer]
    reward_models: RewardModelProcess | None
    beside: Beside
    seconds: float

    def added_to(self, roles: Roles) -> Roles:
        """The roles, with handles to those that have a process of their own."""
        there = {name: process.role(name, seconds=self.seconds) for name, process in self.roles.items()}
        return Roles(
            roles.policy,
            RemoteReference(there["reference"]) if "reference" in there else roles.reference,
            RemoteCritic(there["critic"]) if "critic" in there else roles.critic,
        )

    def standing(self) -> list[tuple[str, str]]:
        """Their names, and what each is doing."""
        judges = [] if self.reward_models is None else [self.reward_models.standing]
        return [*((process.name, process.standing) for process in self.roles.values()), *judges]


@contextmanager
def own_processes(config: RlConfig, crew: Crew, launcher: Launcher, console: Console) -> Iterator[OwnProcesses]:
    """Start them, and end them with the block. They start one after the other, because each takes the fast paths that
    the ones before it have recorded."""
    seconds = config.cluster.stall_seconds
    with ExitStack() as stack:
        roles: dict[str, Peer] = {}
        judges = None
        for model, name in zip(config.cluster.own_process, crew.models, strict=True):
            start = partial(_start, config, crew, launcher, model, name)
            process = start(threading.Event())
            if model == ROLE:
                judges = stack.enter_context(
                    RewardModelProcess(
                        process,
                        start if config.cluster.runs_on != "torchrun" else None,  # which ends all when one is lost
                        restarts=config.cluster.restarts,
                        seconds=seconds,
                        say=crew.say,
                    )
                )
            else:
                stack.callback(process.close)
                roles[model] = process
            ways = process.role("ways", seconds=START_SECONDS)
            record_paths(crew.output, FastPaths(ways.ask("record")))
            say(console, ways.ask("lines"))
        beside = ALONE
        if roles:
            beside = Beside(tuple(roles), stack.enter_context(ThreadPoolExecutor(len(roles))))
        yield OwnProcesses(roles, judges, beside, seconds)


def _start(config: RlConfig, crew: Crew, launcher: Launcher, model: str, name: str, given_up: threading.Event) -> Peer:
    there = config.model_copy(update={"output": str(crew.output)})  # its current folder may be another one
    ways = recorded_ways(crew.output)
    if model == ROLE:
        return launcher.start(Seat(name, reward_role, (there, ways), given_up))
    return launcher.start(Seat(name, own_role, (there, ways, model), given_up))
