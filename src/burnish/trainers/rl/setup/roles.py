"""Models that the loop uses (policy, reference, teachers and critic), made from a run file and a loaded model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from burnish.algorithms.advantages import resolve_estimator
from burnish.config.schema import RlConfig
from burnish.config.schema_teacher import OWN_POLICY
from burnish.forward.divergences import divergence
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.models.critic import SeparateCritic
from burnish.models.distillation import Teachers
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.reference import FrozenReference
from burnish.models.roles import Critic, Policy, Reference
from burnish.trainers.rl.setup.critic import build_separate_critic, build_shared_critic
from burnish.trainers.rl.setup.teachers import build_teachers, frozen, loaded_alone

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Beside:
    """Models that run in their own process (`reference`, `teacher`, `critic`), with one thread each. Empty if there are
    none."""

    models: tuple[str, ...] = ()
    threads: ThreadPoolExecutor | None = None

    def begin(self, model: str, call: Callable[[], Result]) -> Callable[[], Result]:
        """Return a function that waits for the result of a call to this model. The call is made now if the model has
        its own process, else when the result is requested, since its process is busy until then."""
        return call if self.threads is None or model not in self.models else self.threads.submit(call).result


ALONE = Beside()
"""No model has its own process."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The models of a run, in whichever process they are. None if its algorithm does not need the model."""

    policy: Policy
    reference: Reference | None
    critic: Critic | None
    teacher: Reference | None = None


def build_roles(config: RlConfig, loaded: LoadedModel, lanes: Lanes) -> Roles:
    """Build the models of the run, except the ones in other processes (`cluster.own_process`). They start from the
    weights that `loaded` has now, except for a critic with another `critic.init`."""
    elsewhere = config.cluster.own_process
    needs_values = resolve_estimator(config.algorithm.estimator).needs_values and "critic" not in elsewhere
    critic: Critic | None = build_separate_critic(config, loaded, lanes) if needs_values else None
    policy = build_policy(config, loaded, lanes)  # after the critic, whose trunk is to have no adapters
    if needs_values and critic is None:
        critic = build_shared_critic(config, policy)
    reference = policy.reference() if config.has_reference and "reference" not in elsewhere else None
    teacher = None
    if config.teacher_paths and "teacher" not in elsewhere:
        teacher = build_teachers(config, loaded, lanes, here=OWN_POLICY, own=policy.reference)
    if teacher is not None and config.compares_vocabulary:
        policy.compare_with(teacher.comparison(partial(divergence, name="reverse_kl")))
    return _with_rest(config, policy, Roles(policy, reference, critic, teacher))


def _with_rest(config: RlConfig, policy: LocalPolicy, roles: Roles) -> Roles:
    """The roles, with the ones in `cluster.offload` resting between their phases."""
    offload, folder, critic = config.cluster.offload, Path(config.output), roles.critic
    if "optimizer" in offload:
        policy.rest_optimizer(folder)
    if isinstance(critic, SeparateCritic) and ("optimizer" in offload or "critic" in offload):
        critic.rest_optimizer(folder)
    if isinstance(critic, SeparateCritic) and "critic" in offload:
        critic.rest(folder)
    if isinstance(roles.reference, FrozenReference) and "reference" in offload:
        roles.reference.rest(folder)
    if isinstance(roles.teacher, Teachers) and "teacher" in offload:
        roles.teacher.rest(folder)
    return roles


def build_alone(config: RlConfig, loaded: LoadedModel, lanes: Lanes, model: str) -> Reference | Critic:
    """The `reference`, the `critic` or the teachers of a run, in their own process. `loaded`: the model of
    `loaded_alone`."""
    if model == "reference":
        return frozen(config, loaded, lanes)
    if model == "teacher":
        own = partial(frozen, config, loaded, lanes)
        return build_teachers(config, loaded, lanes, here=loaded_alone(config, model), own=own)
    critic = build_separate_critic(config, loaded, lanes)
    assert critic is not None, "a shared critic is refused when the run file is read"
    if "optimizer" in config.cluster.offload:
        critic.rest_optimizer(Path(config.output))
    return critic


def build_policy(config: RlConfig, loaded: LoadedModel, lanes: Lanes = ONE_LANE) -> LocalPolicy:
    """The policy alone. It adds adapters to the loaded model if the run file asks for them."""
    return LocalPolicy(
        loaded,
        OptimizerSettings.from_config(
            config.optimization,
            total_steps=config.policy_updates,
            first_step=config.planned_updates - config.policy_updates,  # earlier ones only warm up the critic
        ),
        temperature=config.rollout.temperature,
        tokens_per_microbatch=config.optimization.microbatch_tokens,
        lora=config.model.lora,
        seed=config.seed,
        lanes=lanes,
        publishes_adapter=config.sends_adapters,
    )
