"""From a run file to the run's critic and its objective."""

from __future__ import annotations

from pathlib import Path

from burnish.config.names import MODEL_REWARD
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.forward.lanes import ONE_LANE, Lanes
from burnish.models.critic import SeparateCritic, SharedCritic
from burnish.models.loading import LoadedModel
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.tokenizers import load_tokenizer, vocabulary_difference
from burnish.models.value_head import HEAD_FILE, init_value_head
from burnish.trainers.result import WEIGHTS_FOLDER
from burnish.trainers.rl.objective import ActorCriticObjective, ClippedValueObjective, PolicyObjective


def build_value_objective(config: RlConfig) -> ClippedValueObjective:
    """Build the objective of an optimizer step of the critic alone. A shared critic has weight 1 here: its loss weight
    applies in the policy's objective."""
    return ClippedValueObjective(
        clip=config.critic.clip,
        aggregation=config.algorithm.aggregation,
        length=config.rollout.max_response_tokens,
        weight=1.0 if config.critic.kind == "shared" else config.critic.loss_weight,
    )


def build_separate_critic(config: RlConfig, loaded: LoadedModel, lanes: Lanes = ONE_LANE) -> SeparateCritic | None:
    """Build the critic before the policy adds adapters to its model. None if it shares the policy's backbone."""
    critic, budget = config.critic, config.optimization.microbatch_tokens
    if critic.kind == "shared":
        return None
    settings = critic_settings(config)
    if critic.init == "policy":
        built = SeparateCritic.copy_of(loaded, settings, tokens_per_microbatch=budget, lanes=lanes)
        init_value_head(built.head, std=critic.head_init_std, seed=config.seed)
        return built
    folder = reward_model_folder(config) if critic.init == "reward_model" else critic.init
    if (Path(folder) / HEAD_FILE).is_file():
        return _critic_of_a_run(Path(folder), loaded, settings, budget, lanes)
    return SeparateCritic.from_folder(
        folder, loaded, settings, field="critic.init", tokens_per_microbatch=budget, lanes=lanes
    )


def _critic_of_a_run(
    folder: Path, loaded: LoadedModel, settings: OptimizerSettings, budget: int, lanes: Lanes
) -> SeparateCritic:
    """A critic that starts from the one in a checkpoint of another run of `burnish rl`, with the same architecture and
    vocabulary. ModelError if that is only a value head (critic.kind shared), which has no backbone."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"critic.init {str(folder)!r} holds a value head without a backbone: that run's critic.kind was shared",
            remedy="use critic.init: policy, a reward model, or a run whose critic.kind was separate",
        )
    theirs = load_tokenizer(ModelConfig(path=str(folder.parent / WEIGHTS_FOLDER)))
    difference = vocabulary_difference(theirs, loaded.tokenizer)
    if difference is not None:
        raise ModelError(
            f"critic.init {str(folder)!r} does not have the tokenizer of the policy, whose token ids it would read: "
            f"{difference}",
            remedy="use a critic of a run on the same model, or critic.init: policy",
        )
    critic = SeparateCritic.copy_of(loaded, settings, tokens_per_microbatch=budget, lanes=lanes)
    critic.load_weights(folder)
    return critic


def reward_model_folder(config: RlConfig) -> str:
    """Folder of the run's only reward model (the run file has been checked to have exactly one)."""
    (name,) = [reward.name for reward in config.all_rewards if reward.name.startswith(MODEL_REWARD)]
    return name.removeprefix(MODEL_REWARD)


def build_shared_critic(config: RlConfig, policy: LocalPolicy) -> SharedCritic:
    """A value head on the policy's backbone, trained by the policy's updates from now on."""
    critic = policy.add_value_head(critic_settings(config))
    init_value_head(critic.head, std=config.critic.head_init_std, seed=config.seed)
    return critic


def critic_settings(config: RlConfig) -> OptimizerSettings:
    """Settings of the critic's optimizer: `optimization`, with its own learning rate and number of steps."""
    rate, steps = config.critic.learning_rate, config.planned_updates
    return OptimizerSettings.from_config(config.optimization, total_steps=steps, learning_rate=rate)


def with_value_loss(config: RlConfig, objective: PolicyObjective) -> PolicyObjective | ActorCriticObjective:
    """The policy's objective, plus the value loss if the critic shares its backbone."""
    if config.critic.kind == "separate":
        return objective
    return ActorCriticObjective(objective, build_value_objective(config), config.critic.loss_weight)
