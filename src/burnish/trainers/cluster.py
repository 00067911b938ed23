"""A run on several processes: which ones are started, and which of them call which.

The command's own process is the controller: it holds the loop, the data, the rewards and the run's folder. The others
(trainers, models with their own process, rollout workers) are processes of this machine or actors of a Ray
cluster, which it starts, calls and ends, or processes that torchrun has started.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.config.schema_run import ConfigT, RunConfig
from burnish.config.torchrun import TorchrunRank, check_world
from burnish.distributed.handles import RemoteCritic, RemotePolicy, RemoteReference, TeamRole
from burnish.distributed.launching import Crew, Launcher, Site, ThisMachine, start_all
from burnish.distributed.peers import START_SECONDS, BuildRoles, Peer, ProcessRole, ProcessSpec, RoleLostError
from burnish.distributed.pool import RolloutPool, Worker
from burnish.distributed.ranks import RankSite
from burnish.distributed.reward_models import ROLE, RewardModelProcess
from burnish.distributed.team import Rendezvous, joined
from burnish.errors import ConfigError, needing
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.forward.team import Slices
from burnish.machine.matmul_precision import num_threads
from burnish.models.critic import SeparateCritic
from burnish.models.distillation import Teachers
from burnish.models.loading import LoadedModel, load_outline
from burnish.models.loading_bars import hide_loading_bars
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.models.reward_learner import RewardLearner
from burnish.observability.console import say
from burnish.observability.timeline import WorkingProcess
from burnish.outside.plugins import is_outside
from burnish.trainers.interrupt import present_watch, watching
from burnish.trainers.outer_loop import OpenedModel, OpenLearner, Training, train_to_end
from burnish.trainers.placement import check_placement, placed, threads_of
from burnish.trainers.result import RunResult
from burnish.trainers.rl.setup.objective import ObjectiveElsewhere
from burnish.trainers.rl.setup.opened_models import Players, open_players
from burnish.trainers.rl.setup.parts import open_rl_run
from burnish.trainers.rl.setup.remote_roles import Ways, engine_role, own_role, reward_role, trained_roles
from burnish.trainers.rl.setup.roles import ALONE, Beside, Roles, build_roles
from burnish.trainers.run_folder import record_paths, recorded_paths, recorded_ways

LearnerT = TypeVar("LearnerT")
OpenRun = Callable[..., AbstractContextManager[Training]]
"""(configuration, console, accept_changes, open_learner) to a run that is closed with the block."""
CUT = (LocalPolicy, FrozenReference, Teachers, SeparateCritic, RewardLearner)
"""Roles that keep slices of their weights with `cluster.sharding: full`."""
OpenRoles = Callable[..., AbstractContextManager[Mapping[str, object]]]
"""From (config, paths, lanes) to the roles of a trainer, in its process, among them `ways`. `paths`: None chooses."""


def train_rl(config: RlConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Run the loop of `burnish.trainers.rl.loop`, from the newest checkpoint in the run's folder on, with as many
    processes as the run file asks for.

    The first Ctrl-C finishes the step and saves. `accept_changes`: continue even if files or versions that the run
    depends on have changed. When a trainer is lost, all of them are started again from the newest checkpoint,
    `cluster.restarts` times at most: the steps since then are repeated, with the same numbers. Raises BurnishError for
    everything that a user can fix.
    """
    with shared_work(config, console) as site:
        opener = partial(open_processes, site) if config.cluster.uses_processes else open_players
        run = partial(open_rl_run, config, console, accept_changes=accept_changes, opener=opener)
        return with_restarts(lambda: train_to_end(run(), console), config, console)


def with_restarts(train: Callable[[], RunResult], config: RunConfig, console: Console) -> RunResult:
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
def shared_work(config: RunConfig, console: Console) -> Iterator[Site]:
    """Open the place for the other processes of a run. This process, too, gets the threads that the run file sets, or
    an equal share of this machine's.

    ConfigError for several processes on a system or machine that cannot run them, for Ray where it is not installed,
    and if torchrun has started another number of processes.
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
    with num_threads(threads_of(config)), _site(config, rank) as site:
        yield site


def _site(config: RunConfig, rank: TorchrunRank | None) -> AbstractContextManager[Site]:
    match config.cluster.runs_on:
        case "ray":
            return _ray_site()
        case "torchrun":
            assert rank is not None, "checked above"
            return RankSite(rank)
        case _:
            return nullcontext(ThisMachine())


def _ray_site() -> AbstractContextManager[Site]:
    with needing("'burnish[ray]'", ConfigError, "cluster.backend is ray, but Ray is not installed"):
        from burnish.distributed.ray_workers import RaySite
    return RaySite()


@contextmanager
def open_processes(
    site: Site, config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console
) -> Iterator[Players]:
    """`OpenPlayers` with trainers and rollout workers in other processes. A single trainer may be the command's own."""
    here, crew = config.cluster.trains_here, _crew(config, console)
    with ExitStack() as stack:
        launcher = stack.enter_context(site.reserved(crew))
        crew.say(f"starting {crew.in_words()}")
        if here:
            roles = build_roles(config, loaded, Lanes(config.cluster.num_lanes))
            record_paths(Path(config.output), paths)
            say(console, paths.lines(verbose=config.logging.verbose))
        open_roles = partial(trained_roles, samples=not crew.workers)
        turns = PathsInTurn(crew, console)
        others = {seat.name: seat for seat in _seats_of_others(config, crew, turns)}
        processes = stack.enter_context(open_team(config, crew, open_roles, launcher, turns, others.values()))
        team = tuple(processes[name] for name in crew.trainers)
        if not here:
            roles = _remote_roles(config, team)
        again = partial(_start_again, crew, launcher, others)
        own = stack.enter_context(own_processes(config, crew, processes, again))
        pool = RolloutPool(
            _workers(config, crew, processes, again),
            lanes=config.cluster.num_lanes,
            restarts=config.cluster.restarts,
            say=crew.say,
            write=launcher.write,
            partial=config.partial,
            rests="rollout_engine" in config.cluster.offload,
        )
        stack.enter_context(pool)
        objective = None if here else partial(ObjectiveElsewhere, config.model_dump_json())
        yield Players(
            _with_handles(roles, own.roles),
            pool,
            objective,
            aside=pool if crew.workers else None,
            beside=own.beside,
            reward_models=own.reward_models,
            processes=lambda: [*team, *own.processes(), *pool.processes()],
        )


def _crew(config: RlConfig, console: Console) -> Crew:
    """The processes that the run file requests."""
    named = (config.algorithm.estimator, config.algorithm.loss, config.rollout.engine)
    return replace(
        crew_of(config, console, trainers=0 if config.cluster.trains_here else config.cluster.trainers),
        models=config.cluster.own_names,
        workers=tuple(f"rollout worker {number}" for number in range(config.cluster.rollout_workers)),
        plugins=tuple(name for name in named if is_outside(name)),
        workers_log=config.engine.traits.log is not None,
        worker_gpus=config.engine.gpus,
    )


def crew_of(config: RunConfig, console: Console, *, trainers: int) -> Crew:
    """A crew of this many trainers, and nobody else."""
    output = Path(config.output).absolute()
    stacks = output / "stacks"
    stacks.mkdir(exist_ok=True)
    names = tuple(f"trainer {rank}" for rank in range(trainers))
    on_gpu = config.model.device != "cpu"
    return Crew(names, (), (), config.cluster, on_gpu, output, stacks, say=lambda text: say(console, (text,)))


@contextmanager
def trainer_seat(open_roles: OpenRoles, config: RunConfig, meeting: Rendezvous) -> Iterator[Mapping[str, object]]:
    """The roles of one trainer. The first trainer chooses the fast paths, and the others take the same. A single
    trainer adds up gradients like the command's own process, without an exchange, which would need several copies."""
    on_gpu = torch.cuda.is_available() and config.model.device != "cpu"
    with joined(meeting, on_gpu=on_gpu) if meeting.size > 1 else nullcontext() as team:
        # With `full`, too: before weights are cut, none has more masters than it will have.
        slices = None if team is None or config.cluster.sharding == "whole" else Slices(team)
        lanes = Lanes(config.cluster.num_lanes, team, slices)
        chosen = None if team is None or team.rank == 0 else FastPaths(team.exchange(None)[0])
        with open_roles(config, chosen, lanes) as roles:
            if slices is not None and config.cluster.sharding == "full":
                from burnish.distributed.fully import fully_sharded  # FSDP takes half a second to import

                slices.forget()
                for role in roles.values():
                    if isinstance(role, CUT):
                        role.share_weights(fully_sharded)  # last: fast paths are tried on whole weights
            if team is not None and team.rank == 0:
                team.exchange(roles["ways"].record)  # type: ignore[attr-defined]
            yield roles


class PathsInTurn:
    """The fast paths of processes that start side by side: each kind of process takes the choices of the kinds before
    it, and the run's folder keeps them all."""

    def __init__(self, crew: Crew, console: Console) -> None:
        self._output, self._console = crew.output, console
        self._found: Future[dict[str, str]] = Future()
        self.keep_trainers = partial(self._keep, self._found)
        if not crew.trainers:
            self._found.set_result(recorded_ways(crew.output))

    def seat(self, name: str, build: BuildRoles, *arguments: object, chooses: bool = True) -> ProcessSpec:
        """The seat of a process that gets the choices of the ones before it as its last argument. chooses: its own
        choices hold for the ones after it."""
        before, built = self._found, None
        if chooses:
            self._found = Future()
            built = partial(self._keep, self._found)
        return ProcessSpec(name, build, arguments, before, built)

    def _keep(self, found: Future[dict[str, str]], process: Peer) -> None:
        ways = process.role("ways", seconds=START_SECONDS)
        record = ways.ask("record")
        record_paths(self._output, FastPaths(record))
        say(self._console, ways.ask("lines"))
        found.set_result(record)


@contextmanager
def open_team(
    config: RunConfig,
    crew: Crew,
    open_roles: OpenRoles,
    launcher: Launcher,
    turns: PathsInTurn,
    others: Iterable[ProcessSpec] = (),
) -> Iterator[Mapping[str, Peer]]:
    """Start the processes; yield them by name. Trainers have met and loaded their models; all of them have the roles of
    `open_roles`, and end with the block. The caller ends `others`, which start at the same time."""
    there = placed(config).model_copy(update={"output": str(crew.output)})  # their current folder may be another one
    # They first wait for the one that loads its model and tries the fast paths, as long as any of them may for itself.
    seconds = max(config.cluster.stall_seconds, START_SECONDS)
    with launcher.meetings(len(crew.trainers), seconds=seconds) as meetings:
        seats = [
            ProcessSpec(name, trainer_seat, (open_roles, there, meeting))
            for name, meeting in zip(crew.trainers, meetings, strict=True)
        ]
        seats[:1] = [replace(seat, built=turns.keep_trainers) for seat in seats[:1]]
        started = start_all(launcher, [*seats, *others])
        team = started[: len(seats)]
        try:
            yield {process.name: process for process in started}
        except RoleLostError:
            for process in team:  # an orderly end would release nothing, and a restart of the run waits for it
                process.kill()
            raise
        finally:
            for process in team:
                process.close()


def _remote_roles(config: RlConfig, team: tuple[Peer, ...]) -> Roles:
    """Make handles to the models that all trainers have."""
    cuts = config.cluster.sharding == "full"
    first, *others = team
    there = {name: TeamRole(first, name, config.cluster.stall_seconds, tuple(others), cuts) for name in first.roles}
    return _with_handles(Roles(RemotePolicy(there["policy"]), None, None), there)


def _with_handles(roles: Roles, there: Mapping[str, ProcessRole]) -> Roles:
    """The roles, with handles to the ones that are in other processes."""
    reference = RemoteReference(there["reference"]) if "reference" in there else roles.reference
    critic = RemoteCritic(there["critic"]) if "critic" in there else roles.critic
    return Roles(
        roles.policy, reference, critic, RemoteReference(there["teacher"]) if "teacher" in there else roles.teacher
    )


StartAgain = Callable[[str, threading.Event], Peer]
"""Function that restarts a process by name, and gives up when the event is set."""


def _seats_of_others(config: RlConfig, crew: Crew, turns: PathsInTurn) -> list[ProcessSpec]:
    """The seats of all processes but trainers: models with their own process, then rollout workers, of which the
    first chooses the decoder for all."""
    there = config.model_copy(update={"output": str(crew.output)})  # as in `open_team`
    seats = [
        turns.seat(name, reward_role, there) if model == ROLE else turns.seat(name, own_role, there, model)
        for model, name in zip(config.cluster.own_process, crew.models, strict=True)
    ]
    workers = [turns.seat(name, engine_role, there, chooses=name == crew.workers[0]) for name in crew.workers]
    return [*seats, *workers]


def _start_again(
    crew: Crew, launcher: Launcher, seats: Mapping[str, ProcessSpec], name: str, given_up: threading.Event
) -> Peer:
    """Restart a process that is not a trainer, with the fast paths that the run's folder keeps."""
    known = (*seats[name].arguments, recorded_ways(crew.output))
    return launcher.start(ProcessSpec(name, seats[name].build, known, given_up=given_up))


def _workers(config: RlConfig, crew: Crew, processes: Mapping[str, Peer], again: StartAgain) -> list[Worker]:
    """The rollout workers or, if there are none, the trainers, which sample with their own weights."""
    seconds = config.cluster.stall_seconds

    def engine_again(name: str, given_up: threading.Event) -> ProcessRole:
        return again(name, given_up).role("engine", seconds=seconds)

    if not crew.workers:
        return [Worker(processes[name].role("engine", seconds=seconds), policy="policy") for name in crew.trainers]
    starts_again = config.cluster.runs_on != "torchrun"  # which ends all when one is lost
    return [
        Worker(processes[name].role("engine", seconds=seconds), partial(engine_again, name) if starts_again else None)
        for name in crew.workers
    ]


@dataclass(frozen=True, slots=True)
class OwnProcesses:
    """Models of a run with their own process (`cluster.own_process`). roles: reference, teacher and critic."""

    roles: Mapping[str, ProcessRole]
    reward_models: RewardModelProcess | None
    beside: Beside

    def processes(self) -> list[WorkingProcess]:
        processes: list[WorkingProcess] = [role.process for role in self.roles.values()]
        return processes if self.reward_models is None else [*processes, self.reward_models]


@contextmanager
def own_processes(
    config: RlConfig, crew: Crew, processes: Mapping[str, Peer], again: StartAgain
) -> Iterator[OwnProcesses]:
    """Open the models that have their own process; the processes end with the block."""
    seconds = config.cluster.stall_seconds
    with ExitStack() as stack:
        roles: dict[str, ProcessRole] = {}
        judges = None
        for model, name in zip(config.cluster.own_process, crew.models, strict=True):
            if model == ROLE:
                judges = stack.enter_context(
                    RewardModelProcess(
                        processes[name],
                        partial(again, name) if config.cluster.runs_on != "torchrun" else None,
                        restarts=config.cluster.restarts,
                        seconds=seconds,
                        say=crew.say,
                    )
                )
            else:
                stack.callback(processes[name].close)
                roles[model] = processes[name].role(model, seconds=seconds)
        beside = ALONE
        if roles:
            beside = Beside(tuple(roles), stack.enter_context(ThreadPoolExecutor(len(roles))))
        yield OwnProcesses(roles, judges, beside)


def train_on_data(
    config: ConfigT,
    open_run: OpenRun,
    open_here: OpenLearner[ConfigT, LearnerT],
    handle: Callable[[ProcessRole], LearnerT],
    *,
    console: Console,
    accept_changes: bool,
) -> RunResult:
    """Train one model with as many trainers as the run file asks for. open_run: opens the run with a learner, which
    `open_here` opens in this process, or in each trainer behind a `handle`.

    Lost trainers are restarted as in `burnish.trainers.cluster.train_rl`.
    """
    with shared_work(config, console) as site:
        elsewhere = partial(_open_elsewhere, site, open_here, handle)
        opened = elsewhere if config.cluster.uses_processes else open_here
        run = partial(open_run, config, console, accept_changes=accept_changes, open_learner=opened)
        return with_restarts(lambda: train_to_end(run(), console), config, console)


@contextmanager
def _open_elsewhere(
    site: Site,
    open_here: OpenLearner[ConfigT, LearnerT],
    handle: Callable[[ProcessRole], LearnerT],
    config: ConfigT,
    paths: FastPaths,
    console: Console,
    lanes: Lanes,
) -> Iterator[OpenedModel[LearnerT]]:
    """`OpenLearner` with the model in trainers, which have the `lanes`. They start when the learner is requested, so
    that unreadable data costs no start."""
    team: list[Peer] = []
    with ExitStack() as stack:

        def learner(total_steps: int) -> LearnerT:
            roles = partial(learner_role, open_here, total_steps)
            crew = crew_of(config, console, trainers=config.cluster.trainers)
            launcher = stack.enter_context(site.reserved(crew))
            crew.say(f"starting {crew.in_words()}")
            opened = open_team(config, crew, roles, launcher, PathsInTurn(crew, console))
            team.extend(stack.enter_context(opened).values())
            paths.follow(team[0].role("ways", seconds=config.cluster.stall_seconds).ask("record"))
            cuts = config.cluster.sharding == "full"
            return handle(TeamRole(team[0], "learner", config.cluster.stall_seconds, tuple(team[1:]), cuts))

        outline = load_outline(config.model, head=config.head, plain=config.debug.plain)
        yield OpenedModel(outline, learner, lambda: team)


@contextmanager
def learner_role(
    open_here: OpenLearner[ConfigT, LearnerT], total_steps: int, config: ConfigT, chosen: FastPaths | None, lanes: Lanes
) -> Iterator[dict[str, object]]:
    """The roles `learner` and `ways`, in the process of a trainer. `chosen`: by another trainer; None takes the fast
    paths that the run has recorded, and chooses the rest."""
    hide_loading_bars()
    paths = recorded_paths(Path(config.output)) if chosen is None else chosen
    with open_here(config, paths, Console(quiet=True), lanes) as opened:
        learner = opened.learner(total_steps)
        yield {"learner": learner, "ways": Ways.of(config, paths, opened.loaded)}
