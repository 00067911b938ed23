"""Models that a run file takes from other runs: each path that names a run becomes the folder of its checkpoint.

It happens before anything is loaded or written, so that the run's config.yaml names the very weights it began with:
when the other run has gone on in the meantime, a resume is refused with both steps instead of taking other weights.
"""

from __future__ import annotations

from typing import Any, TypeVar

from burnish.checkpointing.chaining import Chosen, find_checkpoint
from burnish.config.names import MODEL_REWARD
from burnish.config.schema import CriticConfig, RewardConfig, RlConfig, RmConfig, RunConfig
from burnish.config.schema_data import ModelConfig
from burnish.trainers.result import CRITIC_FOLDER, WEIGHTS_FOLDER

Config = TypeVar("Config", bound=RunConfig)
Found = list[str]


def pinned(config: Config) -> tuple[Config, list[str]]:
    """The configuration with every model path that names a run replaced by the weights of its checkpoint, and a line
    for each of them. Raises CheckpointError as `find_checkpoint`."""
    said: Found = []
    changed: dict[str, Any] = {"model": _model(config.model, said)}
    if isinstance(config, RlConfig):
        changed["critic"] = _critic(config.critic, said)
        changed["rewards"] = tuple(_reward(reward, index, said) for index, reward in enumerate(config.rewards))
    if isinstance(config, RmConfig) and config.normalization.policy is not None:
        policy = _weights(config.normalization.policy, "normalization.policy", said)
        changed["normalization"] = config.normalization.model_copy(update={"policy": policy})
    return config.model_copy(update=changed), said


def with_weights(model: ModelConfig, weights: str) -> ModelConfig:
    """The model of a run file with saved weights in place of its own: whole (adapters are merged on saving), and never
    drawn anew."""
    return model.model_copy(update={"path": weights, "lora": None, "from_scratch": False, "revision": None})


def _model(model: ModelConfig, said: Found) -> ModelConfig:
    path = _weights(model.path, "model.path", said)
    tokenizer = None if model.tokenizer is None else _weights(model.tokenizer, "model.tokenizer", said)
    return model.model_copy(update={"path": path, "tokenizer": tokenizer})


def _reward(reward: RewardConfig, index: int, said: Found) -> RewardConfig:
    if not reward.name.startswith(MODEL_REWARD):
        return reward
    weights = _weights(reward.name.removeprefix(MODEL_REWARD), f"rewards.{index}.name", said)
    return reward.model_copy(update={"name": MODEL_REWARD + weights})


def _critic(critic: CriticConfig, said: Found) -> CriticConfig:
    """A run of `burnish rm` gives its reward model, one with a critic of its own gives that critic."""
    if critic.init in ("policy", "reward_model"):
        return critic
    chosen = find_checkpoint(critic.init, field="critic.init")
    if chosen is None:
        return critic
    own = chosen.checkpoint.folder / CRITIC_FOLDER
    folder = own if own.is_dir() else chosen.checkpoint.folder / WEIGHTS_FOLDER
    said.append(_line("critic.init", chosen))
    return critic.model_copy(update={"init": str(folder)})


def _weights(path: str, field: str, said: Found) -> str:
    chosen = find_checkpoint(path, field=field)
    if chosen is None:
        return path
    said.append(_line(field, chosen))
    return str(chosen.checkpoint.folder / WEIGHTS_FOLDER)


def _line(field: str, chosen: Chosen) -> str:
    return f"{field}: {chosen}"
