"""From a run file to what an optimizer step of the policy minimises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from torch import Tensor

from burnish.algorithms.advantages import resolve_estimator
from burnish.algorithms.mismatch import correction_weights
from burnish.algorithms.policy_losses.table import PolicyLossSpec
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.forward.batch import Batch, TokenScores
from burnish.models.roles import Denominators, Objective, ObjectiveValue
from burnish.outside.plugins import is_outside
from burnish.trainers.rl.algorithm import AlgorithmParts, resolve_algorithm
from burnish.trainers.rl.credit.user_functions import CheckedLoss
from burnish.trainers.rl.objective import ActorCriticObjective, PolicyObjective, TeacherObjective
from burnish.trainers.rl.setup.critic import with_value_loss


def objectives(config: RlConfig, parts: AlgorithmParts) -> Callable[[float], Objective]:
    """The objective for a KL coefficient. Where the KL is not in the loss, it is one for all of them."""
    objective = build_objective(config, parts.loss, parts.loss_numbers, config.algorithm.kl_coef)
    return objective.with_kl_coef if config.algorithm.kl_in == "loss" else lambda kl_coef: objective


def build_objective(
    config: RlConfig, loss: PolicyLossSpec, numbers: dict[str, Any], kl_coef: float
) -> PolicyObjective | ActorCriticObjective | TeacherObjective:
    """Build the objective of an optimizer step of the policy, with this KL coefficient."""
    algorithm = config.algorithm
    if config.compares_vocabulary:
        return TeacherObjective(algorithm.aggregation, config.rollout.max_response_tokens)
    objective = PolicyObjective(
        policy_loss=CheckedLoss(loss.function, loss.name) if is_outside(loss.name) else loss.function,
        numbers=numbers,
        aggregation=algorithm.aggregation,
        length=config.rollout.max_response_tokens,
        kl_coef=kl_coef if algorithm.kl_in == "loss" else 0.0,
        kl_estimator=algorithm.kl_function,
        kl_times_ratio=algorithm.kl_times_ratio,
        entropy_coef=algorithm.entropy_coef,
        correction=_correction(algorithm),
        off_policy_delta=algorithm.mismatch_delta,
        takes=loss.more_inputs,
        old_logprobs_of_sampler=config.old_logprobs_of_sampler,
    )
    needs_values = resolve_estimator(algorithm.estimator).needs_values
    return with_value_loss(config, objective) if needs_values else objective


@dataclass(frozen=True, slots=True)
class ObjectiveElsewhere:
    """The objective of a run file for a KL coefficient, built where it is used: functions that a run file names by
    their paths cannot be sent to another process, and its text can."""

    run_file: str
    kl_coef: float

    @property
    def needs_entropy(self) -> bool:
        return self._built().needs_entropy

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        return self._built()(scores, batch, denominators)

    def _built(self) -> Objective:
        return _objectives_of(self.run_file)(self.kl_coef)


@lru_cache(maxsize=1)
def _objectives_of(run_file: str) -> Callable[[float], Objective]:
    config = RlConfig.model_validate_json(run_file)
    return objectives(config, resolve_algorithm(config.algorithm))


def _correction(algorithm: AlgorithmConfig) -> Callable[..., Tensor] | None:
    if not algorithm.weights_mismatch:
        return None
    level, mode = algorithm.mismatch_correction.split("_", 1)
    low, high = algorithm.mismatch_low, algorithm.mismatch_high
    return partial(correction_weights, level=level, mode=mode, low=low, high=high)
