"""From the rewards of a run file to plain specifications, checked as far as they can be without loading a reward."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from burnish.errors import ConfigError
from burnish.rewards.environment import check_environment
from burnish.rewards.loading import RewardSpec

if TYPE_CHECKING:
    from burnish.config.schema import RewardConfig


def spec_of(reward: RewardConfig) -> RewardSpec:
    """The specification of a reward. Its label is the given one, else the name of the built-in or function, or
    `model`."""
    return RewardSpec(reward.name, reward.log_label, dict(reward.options), reward.timeout_seconds, reward.environment)


def specs_of(rewards: Sequence[RewardConfig]) -> list[RewardSpec]:
    """One for each reward. ConfigError for two with the same label, and for an `environment` that has no effect or
    names a variable that is not set."""
    labels = [reward.log_label for reward in rewards]
    for label, count in Counter(labels).items():
        if count > 1:
            raise ConfigError(
                f"two rewards have the label {label!r}", remedy="give each its own label: under rewards, label: ..."
            )
    specs = [spec_of(reward) for reward in rewards]
    for spec in specs:
        _check_environment(spec)
    return specs


def _check_environment(spec: RewardSpec) -> None:
    if spec.environment and (spec.is_model or spec.runs_inline):
        raise ConfigError(
            f"reward {spec.label!r} sets `environment`, but it runs in the training process and sees all variables",
            remedy="remove `environment` from it",
        )
    check_environment(spec.environment, spec.label, os.environ)
