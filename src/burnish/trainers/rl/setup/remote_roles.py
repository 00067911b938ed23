"""Parts of a run in a separate process: the models that are trained, the engine, or reward models. `RoleProcess`
builds these.

All take the fast paths recorded in the run's folder, so that they compute exactly what a single process would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from burnish.config.schema import RlConfig, RunConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.distributed.reward_models import ROLE
from burnish.forward.fast_paths import FastPaths
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.forward.matmul_choice import fast_float32
from burnish.models.loading import LoadedModel, load_outline
from burnish.models.loading_bars import hide_loading_bars
from burnish.models.lora import Adapter
from burnish.rewards.model_reward import RewardModels
from burnish.rewards.specs import spec_of
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.rl.setup.opened_models import open_model, open_rl_engine
from burnish.trainers.rl.setup.preflight import computes_twice_at_once
from burnish.trainers.rl.setup.roles import build_alone, build_roles
from burnish.trainers.rl.setup.teachers import loaded_alone, teacher_model
from burnish.trainers.run_folder import recorded_paths


@dataclass(frozen=True, slots=True)
class Ways:
    """A role that tells which fast paths its process takes, what to say of them, and of the model."""

    record: dict[str, str]
    lines: tuple[str, ...]

    @staticmethod
    def of(config: RunConfig, paths: FastPaths, loaded: LoadedModel) -> Ways:
        return Ways(paths.record(), (*loaded.notes, *paths.lines(verbose=config.logging.verbose)))


@contextmanager
def trained_roles(
    config: RlConfig, paths: FastPaths | None = None, lanes: Lanes = ONE_LANE, *, samples: bool = False
) -> Iterator[dict[str, object]]:
    """`policy`, and `reference`, `teacher` and `critic` where the algorithm needs them; with `samples` an `engine` that
    shares the policy's weights; `ways`. Without `paths` it takes the fast paths that the run has recorded."""
    console = Console(quiet=True)
    paths = recorded_paths(Path(config.output)) if paths is None else paths
    hide_loading_bars()
    with ExitStack() as stack:
        loaded = stack.enter_context(open_model(config, paths, console))
        roles = build_roles(config, loaded, lanes)
        named: dict[str, object] = {"policy": roles.policy, "reference": roles.reference, "critic": roles.critic}
        named["teacher"] = roles.teacher
        if samples:
            named["engine"] = stack.enter_context(open_rl_engine(config, loaded, console))
        named["ways"] = Ways.of(config, paths, loaded)
        yield {name: role for name, role in named.items() if role is not None}


@contextmanager
def own_role(config: RlConfig, model: str, ways: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """`reference`, `teacher` or `critic`, which has the process for itself, and takes these fast paths; `ways`."""
    console, paths = Console(quiet=True), FastPaths(ways)
    hide_loading_bars()
    path, model_alone = loaded_alone(config, model), config.model
    if path != OWN_POLICY:
        model_alone = teacher_model(config, path)
    with open_model(config.model_copy(update={"model": model_alone}), paths, console) as loaded:
        role = build_alone(config, loaded, Lanes(config.cluster.num_lanes), model)
        yield {model: role, "ways": Ways.of(config, paths, loaded)}


@contextmanager
def reward_role(config: RlConfig, ways: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """`reward_model`: the models of all rewards, alone in this process; `ways`. Reads the policy's folder without its
    weights, for the tokenizer and the precision of float32 products."""
    paths = FastPaths(ways)
    hide_loading_bars()
    policy = load_outline(config.model, plain=config.debug.plain)
    with fast_float32(policy.model, plain=config.debug.plain or computes_twice_at_once(config), paths=paths):
        models = RewardModels.load(spec_of(reward) for reward in config.all_rewards if reward.is_model)
        yield {ROLE: models, "ways": Ways(paths.record(), tuple(models.attach_policy(policy.tokenizer)))}


@contextmanager
def engine_role(config: RlConfig, ways: Mapping[str, str] | None = None) -> Iterator[dict[str, RolloutEngine | Ways]]:
    """`engine`, with the weights of the run file's model until its first `sync`; `ways`. With `ways`, the fast paths to
    take, it need not see the run's folder."""
    console = Console(quiet=True)
    paths = recorded_paths(Path(config.output)) if ways is None else FastPaths(ways)
    hide_loading_bars()
    if config.engine.traits.copies:  # its own weights take the GPU, or several
        config = config.changed("model", device="cpu")
    with open_model(config, paths, console, takes_weights=True) as loaded:
        if config.sends_adapters and config.model.lora is not None:
            Adapter(loaded.model, config.model.lora, seed=config.seed)
        with open_rl_engine(config, loaded, console) as engine:
            yield {"engine": engine, "ways": Ways.of(config, paths, loaded)}
