"""From a run file to the critic of a run, and to what it minimises."""

from __future__ import annotations

from burnish.config.schema import RlConfig
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Objective, ValueObjective
from burnish.trainers.value_objective import ActorCriticObjective, ClippedValueObjective


def build_value_objective(config: RlConfig) -> ValueObjective:
    """What an optimizer step of a critic minimises."""
    return ClippedValueObjective(
        clip=config.critic.clip,
        aggregation=config.algorithm.aggregation,
        length=config.rollout.max_response_tokens,
    )


def build_separate_critic(config: RlConfig, loaded: LoadedModel) -> SeparateCritic | None:
    """None where the critic shares the policy's trunk. Call it before the policy builds adapters into its model."""
    critic, budget = config.critic, config.optimization.tokens_per_microbatch
    if critic.kind == "shared":
        return None
    settings = critic_settings(config)
    if critic.init == "policy":
        return SeparateCritic.copy_of(loaded, settings, tokens_per_microbatch=budget)
    return SeparateCritic.from_folder(critic.init, loaded, settings, field="critic.init", tokens_per_microbatch=budget)


def build_shared_critic(config: RlConfig, policy: LocalPolicy) -> SharedCritic:
    budget = config.optimization.tokens_per_microbatch
    return SharedCritic(policy, critic_settings(config), tokens_per_microbatch=budget)


def critic_settings(config: RlConfig) -> OptimizerSettings:
    """Numbers of the critic's optimizer: those of `optimization`, with its own learning rate and number of steps."""
    steps = config.steps * config.optimization.epochs * config.optimization.minibatches
    rate = config.critic.learning_rate
    return OptimizerSettings.from_config(config.optimization, total_steps=steps, learning_rate=rate)


def with_value_loss(config: RlConfig, objective: Objective) -> Objective:
    """The policy's objective with the value loss added where the critic shares its trunk, else as it is."""
    if config.critic.kind == "separate":
        return objective
    return ActorCriticObjective(objective, build_value_objective(config), config.critic.coef)
