"""The functions behind `algorithm` in a run file: its estimator and its loss, with their parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

from burnish.algorithms.advantages import Estimator, resolve_estimator
from burnish.algorithms.policy_losses.table import PolicyLossSpec, resolve_policy_loss
from burnish.config.schema import AlgorithmConfig


class AlgorithmParts(NamedTuple):
    """The functions behind `algorithm` in a run file. `loss_numbers` are keyword arguments of the loss."""

    estimator: Estimator
    loss: PolicyLossSpec
    loss_numbers: dict[str, Any]


def resolve_algorithm(algorithm: AlgorithmConfig) -> AlgorithmParts:
    """Find the functions by their names. ConfigError for an unknown name or option, and a number out of its range."""
    estimator = resolve_estimator(algorithm.estimator)
    estimator.check_options(estimator_numbers(estimator, algorithm), "algorithm.estimator_options: ")
    loss = resolve_policy_loss(algorithm.loss)
    clips = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
    numbers = {name: value for name, value in clips.items() if name in loss.option_names and value is not None}
    numbers |= algorithm.loss_options
    loss.check_options(numbers, "algorithm.loss_options: ")
    loss.check_numbers(numbers)
    return AlgorithmParts(estimator, loss, numbers)


def estimator_numbers(estimator: Estimator, algorithm: AlgorithmConfig) -> dict[str, object]:
    """Keyword numbers of the estimator: the fields of the run file that it takes, then `estimator_options`."""
    shared = {"gamma": algorithm.gamma, "lam": algorithm.lam, "allow_single": True}
    known = {name: value for name, value in shared.items() if name in estimator.option_names}
    return known | algorithm.estimator_options


def reads_responses_alone(estimator: Estimator) -> bool:
    """Return whether the advantages of a response depend only on its own token rewards and values."""
    own = {"token_rewards_BT", "values_BT", "mask_BT", "turn_index_BT"}
    return estimator.token_level and set(estimator.inputs) <= own
