"""From a run file and a loaded model to the models that the loop uses: policy, reference and critic."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.algorithms.advantages import resolve_estimator
from burnish.config.schema import RlConfig
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Critic, Policy, Reference
from burnish.trainers.rl.critic_setup import build_separate_critic, build_shared_critic


@dataclass(frozen=True, slots=True)
class Roles:
    """The models of a run, in whichever process they are. None for those that its algorithm does not need."""

    policy: Policy
    reference: Reference | None
    critic: Critic | None


def build_roles(config: RlConfig, loaded: LoadedModel, lanes: Lanes) -> Roles:
    """The models of the run, in this process. They start from the weights that `loaded` has now, except for a critic
    with another `critic.init`."""
    needs_values = resolve_estimator(config.algorithm.estimator).needs_values
    critic: Critic | None = build_separate_critic(config, loaded, lanes) if needs_values else None
    policy = build_policy(config, loaded, lanes)  # after the critic, whose trunk is to have no adapters
    if needs_values and critic is None:
        critic = build_shared_critic(config, policy)
    reference = None if config.algorithm.kl_in == "none" else policy.reference()
    return Roles(policy, reference, critic)


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
        tokens_per_microbatch=config.optimization.tokens_per_microbatch,
        lora=config.model.lora,
        seed=config.seed,
        lanes=lanes,
    )
