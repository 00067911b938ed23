"""A run that trains one model on given data, with trainers in other processes where the run file asks for them;
`burnish.trainers.cluster` starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from burnish.config.schema import RunConfig
from burnish.distributed.handles import TeamRole
from burnish.distributed.launching import Site
from burnish.distributed.peers import Peer, ProcessRole
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import load_outline
from burnish.models.loading_bars import hide_loading_bars
from burnish.trainers.cluster import PathsInTurn, crew_of, open_team, shared_work, with_restarts
from burnish.trainers.outer_loop import OpenedModel, OpenLearner, Training, train_to_end
from burnish.trainers.result import RunResult
from burnish.trainers.rl.setup.remote_roles import Ways
from burnish.trainers.run_folder import recorded_paths

ConfigT = TypeVar("ConfigT", bound=RunConfig)
LearnerT = TypeVar("LearnerT")
OpenRun = Callable[..., AbstractContextManager[Training]]
"""(configuration, console, accept_changes, open_learner) to a run that is closed with the block."""


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
    open_here: OpenLearner[ConfigT, LearnerT],
    total_steps: int,
    config: ConfigT,
    chosen: FastPaths | None,
    lanes: Lanes,
) -> Iterator[dict[str, object]]:
    """The roles `learner` and `ways`, in the process of a trainer. `chosen`: by another trainer; None takes the fast
    paths that the run has recorded, and chooses the rest."""
    hide_loading_bars()
    paths = recorded_paths(Path(config.output)) if chosen is None else chosen
    with open_here(config, paths, Console(quiet=True), lanes) as opened:
        learner = opened.learner(total_steps)
        yield {"learner": learner, "ways": Ways.of(config, paths, opened.loaded)}
