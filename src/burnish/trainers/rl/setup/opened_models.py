"""Model, roles and engine of a run file: opened in this process, or in others (`OpenPlayers`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import Lanes
from burnish.forward.matmul_choice import fast_float32
from burnish.machine.memory import keep_freed_memory, return_freed_memory
from burnish.models.loading import LoadedModel, load_model, load_outline, sampled_ids
from burnish.models.roles import Objective
from burnish.observability.console import say
from burnish.observability.timeline import Processes, nobody
from burnish.outside.plugins import is_outside
from burnish.rewards.protocol import ScoringModels
from burnish.rollouts.engine import RolloutEngine, notes_of
from burnish.rollouts.outside_engine import outside_engine
from burnish.rollouts.portions import PortionedEngine
from burnish.rollouts.registry import build_engine
from burnish.trainers.rl.setup.preflight import check_fit, computes_twice_at_once
from burnish.trainers.rl.setup.roles import ALONE, Beside, Roles, build_roles
from burnish.trainers.rl.supply.threaded import AsideEngine
from burnish.trainers.run_folder import record_paths


@contextmanager
def open_model(
    config: RlConfig, paths: FastPaths, console: Console, *, takes_weights: bool = False
) -> Iterator[LoadedModel]:
    """The model of the run file, checked to have room for the run's responses. Within this context, float32 products
    take the path that `paths` chose. takes_weights: as in `load_model`."""
    loaded = load_model(
        config.model, seed=config.seed, plain=config.debug.plain, paths=paths, takes_weights=takes_weights
    )
    check_fit(config, loaded.context_length, sampled_ids(loaded))
    keep_freed_memory(loaded.model.device.type)
    with fast_float32(loaded.model, plain=config.debug.plain or computes_twice_at_once(config), paths=paths):
        say(console, loaded.notes)
        yield loaded


def outline_of(config: RlConfig) -> LoadedModel:
    """The model of `open_model` without weights, where all that needs them is in other processes."""
    loaded = load_outline(config.model, plain=config.debug.plain)
    check_fit(config, loaded.context_length, sampled_ids(loaded))
    return loaded


@contextmanager
def open_rl_engine(config: RlConfig, loaded: LoadedModel, console: Console) -> Iterator[RolloutEngine]:
    """The engine of the run file, released at the end. It gets the longest text that this run can have as its context:
    vLLM reserves memory for that much, and a sliding window that the texts fit into can be ignored."""
    name, traits, folder = config.rollout.engine, config.engine.traits, Path(config.output)
    context_length, rests = longest_text(config, loaded), "rollout_engine" in config.cluster.offload
    engine = build_engine(config.rollout, loaded, context_length=context_length, rests=rests, folder=folder)
    if traits.tries_paths:
        return_freed_memory()  # of the trials that chose how to decode
    say(console, notes_of(engine))
    if is_outside(name):
        engine = outside_engine(engine, name, sampled_ids(loaded), traits, rests=rests)
    with engine if isinstance(engine, AbstractContextManager) else nullcontext():
        yield engine


def longest_text(config: RlConfig, loaded: LoadedModel) -> int:
    """Most tokens that prompt and response together can have in this run."""
    return min(loaded.context_length, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)


@dataclass(frozen=True, slots=True)
class Players:
    """Models and engine that the training loop calls."""

    roles: Roles
    engine: RolloutEngine
    objective: Callable[[float], Objective] | None = None
    """Stand-in for the objective at a KL coefficient, to send to a remote policy; None if the policy is here."""
    aside: AsideEngine | None = None
    """The engine, if it can sample while the policy learns."""
    beside: Beside = ALONE
    """The models that work while others do."""
    reward_models: ScoringModels | None = None
    """Reward models in their own process; None if the scorer has them."""
    processes: Processes = nobody
    """The other processes."""


OpenPlayers = Callable[[RlConfig, LoadedModel, FastPaths, Console], AbstractContextManager[Players]]
"""Opens policy, reference, critic and engine, lets them go at the end of the block, and says which paths they take."""


@contextmanager
def open_players(config: RlConfig, loaded: LoadedModel, paths: FastPaths, console: Console) -> Iterator[Players]:
    """`OpenPlayers` with all of them in this process."""
    lanes = config.cluster.num_lanes
    roles = build_roles(config, loaded, Lanes(lanes))
    with open_rl_engine(config, loaded, console) as engine:
        say(console, paths.lines(verbose=config.logging.verbose))
        record_paths(Path(config.output), paths)
        yield Players(roles, engine if lanes == 1 else PortionedEngine(engine, lanes))
