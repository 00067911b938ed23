"""The estimator and the loss that a run file names, and the numbers that it sets for the loss."""

from __future__ import annotations

from typing import Any, NamedTuple

from burnish.algorithms.advantages import Estimator, resolve_estimator
from burnish.algorithms.policy_losses import PolicyLossSpec, resolve_policy_loss
from burnish.config.schema import AlgorithmConfig
from burnish.trainers.rl.credit import estimator_numbers


class AlgorithmParts(NamedTuple):
    """The functions behind `algorithm` in a run file. `loss_numbers` are keyword arguments of the loss."""

    estimator: Estimator
    loss: PolicyLossSpec
    loss_numbers: dict[str, Any]


def resolve_algorithm(algorithm: AlgorithmConfig) -> AlgorithmParts:
    """Find the functions by their names. ConfigError for an unknown name or option, and a number out of its range."""
    estimator = resolve_estimator(algorithm.estimator)
    estimator.check_options(estimator_numbers(estimator, algorithm))
    loss = resolve_policy_loss(algorithm.loss)
    clips = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
    known = {*loss.options, *loss.required_options}
    numbers = {name: value for name, value in clips.items() if name in known and value is not None}
    numbers |= algorithm.loss_options
    loss.check_options(numbers)
    loss.check_numbers(numbers)
    return AlgorithmParts(estimator, loss, numbers)
