"""A run of `burnish sft` or `burnish rm` with trainers in other processes; `burnish.trainers.cluster` starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from burnish.config.schema import RmConfig, SftConfig
from burnish.distributed.handles import RemotePolicy, RemoteRewardLearner, RoleHandle, TeamRole
from burnish.distributed.launching import Site
from burnish.distributed.peers import Peer
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.models.loading import Head, load_outline
from burnish.trainers.cluster import PathsInTurn, crew_of, open_team, shared_work, with_restarts
from burnish.trainers.outer_loop import Learned, Opened, OpenLearner
from burnish.trainers.result import RunResult
from burnish.trainers.reward_model.loop import open_reward
from burnish.trainers.reward_model.loop import train_reward_model as train_reward_model_with
from burnish.trainers.rl.elsewhere import Ways, without_progress_bars
from burnish.trainers.sft import open_policy
from burnish.trainers.sft import train_sft as train_sft_with
from burnish.trainers.workplace import recorded_paths

ConfigT = TypeVar("ConfigT", bound=Learned)
LearnerT = TypeVar("LearnerT")


def train_sft(config: SftConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Fine-tune with as many trainers as the run file asks for; see `burnish.trainers.sft.train_sft`.

    Lost trainers are started again as in `burnish.trainers.cluster.train_rl`.
    """
    with shared_work(config, console) as site:
        trainers = _opening(config, site, open_policy, "language", RemotePolicy)
        train = partial(train_sft_with, config, console=console, accept_changes=accept_changes, open_learner=trainers)
        return with_restarts(train, config, console)


def train_reward_model(config: RmConfig, *, console: Console, accept_changes: bool = False) -> RunResult:
    """Train a reward model likewise; see `burnish.trainers.reward_model.loop.train_reward_model`."""
    with shared_work(config, console) as site:
        trainers = _opening(config, site, open_reward, "score", RemoteRewardLearner)
        train = partial(
            train_reward_model_with, config, console=console, accept_changes=accept_changes, open_learner=trainers
        )
        return with_restarts(train, config, console)


def _opening(
    config: ConfigT,
    site: Site,
    open_here: OpenLearner[ConfigT, LearnerT],
    head: Head,
    handle: Callable[[RoleHandle], LearnerT],
) -> OpenLearner[ConfigT, LearnerT]:
    """Choose how the learner is opened: `open_here` in this process, or in each trainer behind a `handle`."""
    return partial(_open_elsewhere, site, open_here, head, handle) if config.cluster.uses_processes else open_here


@contextmanager
def _open_elsewhere(
    site: Site,
    open_here: OpenLearner[ConfigT, LearnerT],
    head: Head,
    handle: Callable[[RoleHandle], LearnerT],
    config: ConfigT,
    paths: FastPaths,
    console: Console,
    lanes: Lanes,
) -> Iterator[Opened[LearnerT]]:
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
            return handle(TeamRole(tuple(team), "learner", config.cluster.stall_seconds, cuts))

        outline = load_outline(config.model, head=head, plain=config.debug.plain)
        yield Opened(outline, learner, lambda: [(process.name, process.standing) for process in team])


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
    without_progress_bars()
    paths = recorded_paths(Path(config.output)) if chosen is None else chosen
    with open_here(config, paths, Console(quiet=True), lanes) as opened:
        learner = opened.learner(total_steps)
        yield {"learner": learner, "ways": Ways.of(paths, opened.loaded)}
