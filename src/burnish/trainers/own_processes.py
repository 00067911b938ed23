"""Models with a process of their own (`cluster.own_process`): the reference, the critic, and the reward models."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.distributed.handles import RemoteCritic, RemoteReference
from burnish.distributed.launching import Crew, Launcher, Seat
from burnish.distributed.peers import START_SECONDS, Peer
from burnish.distributed.reward_models import ROLE, RewardModelProcess
from burnish.forward.fast_paths import FastPaths
from burnish.observability.console import say
from burnish.trainers.rl.elsewhere import own_role, reward_role
from burnish.trainers.rl.roles import ALONE, Beside, Roles
from burnish.trainers.workplace import record_paths, recorded_ways


@dataclass(frozen=True, slots=True)
class OwnProcesses:
    """Those of a run. roles: of reference and critic, by their names. seconds: how long a request to one may take."""

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
                        say=lambda text: say(console, (text,)),
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
