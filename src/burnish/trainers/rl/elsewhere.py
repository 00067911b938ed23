"""What a separate process holds of a run: the models that are trained, or the engine. `RoleProcess` builds these.

Both load the model of the run file and take the fast paths recorded in the run's folder, so that they compute exactly
what a single process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from burnish.config.schema import RlConfig
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.path_record import recorded_paths
from burnish.trainers.rl.roles import build_roles
from burnish.trainers.rl.setup import open_model, open_rl_engine


@contextmanager
def trained_roles(config: RlConfig) -> Iterator[dict[str, object]]:
    """`policy`, and `reference` and `critic` if the algorithm needs them."""
    with open_model(config, recorded_paths(Path(config.output)), Console(quiet=True)) as loaded:
        roles = build_roles(config, loaded)
        named = {"policy": roles.policy, "reference": roles.reference, "critic": roles.critic}
        yield {name: role for name, role in named.items() if role is not None}


@contextmanager
def engine_role(config: RlConfig) -> Iterator[dict[str, RolloutEngine]]:
    """`engine`, which has the weights of the run file's model until its first `sync`."""
    console = Console(quiet=True)
    with (
        open_model(config, recorded_paths(Path(config.output)), console) as loaded,
        open_rl_engine(config, loaded, console) as engine,
    ):
        yield {"engine": engine}
