"""Who plays the roles of a run: models and engine of this process here, others where the run file asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import LoadedModel
from burnish.models.roles import Objective
from burnish.observability.console import Standing, nobody, say
from burnish.rewards.protocol import ScoringModels
from burnish.rollouts.engine import RolloutEngine
from burnish.rollouts.portions import PortionedEngine
from burnish.trainers.path_record import record_paths
from burnish.trainers.rl.beside import ALONE, Beside
from burnish.trainers.rl.opening import open_model, open_rl_engine
from burnish.trainers.rl.roles import Roles, build_roles
from burnish.trainers.rl.supply_aside import AsideEngine


@dataclass(frozen=True, slots=True)
class Players:
    """What the loop asks."""

    roles: Roles
    engine: RolloutEngine
    objective: Callable[[float], Objective] | None = None
    """What stands for the objective at a KL coefficient on its way to the policy; None where it goes there itself."""
    aside: AsideEngine | None = None
    """The engine, if it can sample while the policy learns."""
    beside: Beside = ALONE
    """The models that work while others do."""
    reward_models: ScoringModels | None = None
    """Those that have a process of their own; None where the scorer has them."""
    standing: Standing = nobody
    """Other processes, and what they are doing."""


class Cast(Protocol):
    """Opens the model and the players of a run. Both are let go at the end of their blocks."""

    def open_model(self, config: RlConfig, paths: FastPaths, console: Console) -> AbstractContextManager[LoadedModel]:
        """Model and tokenizer; without weights where all that needs them is elsewhere."""
        ...

    def open_players(
        self, config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console
    ) -> AbstractContextManager[Players]:
        """Policy, reference, critic and engine, and a word to the user on the ways that they take."""
        ...


class Inline:
    """Everything in this process."""

    def open_model(self, config: RlConfig, paths: FastPaths, console: Console) -> AbstractContextManager[LoadedModel]:
        """See `Cast`."""
        return open_model(config, paths, console)

    @contextmanager
    def open_players(
        self, config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console
    ) -> Iterator[Players]:
        """See `Cast`."""
        lanes = config.cluster.num_lanes
        roles = build_roles(config, loaded, Lanes(lanes))
        with open_rl_engine(config, loaded, console) as engine:
            say(console, paths.lines())
            record_paths(Path(config.output), paths)
            yield Players(roles, engine if lanes == 1 else PortionedEngine(engine, lanes))
