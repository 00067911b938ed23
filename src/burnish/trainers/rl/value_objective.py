"""What an optimizer step of a critic minimises, alone or together with a policy that shares its trunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algorithms.value_losses import clipped_value, value_metrics
from burnish.forward.batch import Batch
from burnish.forward.token_scores import TokenScores
from burnish.models.roles import Denominators, Objective, ObjectiveValue, ValueObjective
from burnish.trainers.rl.objective import aggregate_step, share
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class ClippedValueObjective:
    """Clipped squared error between values and returns, aggregated over the optimizer step like a policy loss."""

    clip: float | None
    aggregation: str
    length: int

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        if batch.values is None or batch.returns is None:
            raise ValueError("the batch lacks the values or returns that the value loss needs")
        mask = batch.loss_mask
        per_token = clipped_value(values_BT, batch.values, batch.returns, clip=self.clip, mask_BT=mask)
        loss = aggregate_step(per_token, mask, self.aggregation, self.length, denominators)
        metrics = value_metrics(values_BT, batch.values, batch.returns, mask, clip=self.clip)
        metrics["loss"] = share(loss, mask, denominators)
        return ObjectiveValue(loss, {f"critic/{name}": metric for name, metric in metrics.items()})


@dataclass(frozen=True, slots=True)
class WeightedValueObjective:
    """A value loss times a constant. What is logged stays the loss itself."""

    objective: ValueObjective
    weight: float

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        value = self.objective(values_BT, batch, denominators)
        return ObjectiveValue(self.weight * value.loss, value.metrics)


@dataclass(frozen=True, slots=True)
class ActorCriticObjective:
    """Policy loss + coef * value loss, for a critic that shares the policy's trunk."""

    policy: Objective
    value: ValueObjective
    coef: float

    @property
    def needs_entropy(self) -> bool:
        return self.policy.needs_entropy

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        if scores.values_BT is None:
            raise ValueError("the policy gives no values; a critic has to share its trunk first")
        policy = self.policy(scores, batch, denominators)
        value = self.value(scores.values_BT, batch, denominators)
        loss = policy.loss + self.coef * value.loss
        return ObjectiveValue(loss, {**policy.metrics, **value.metrics}, policy.signals)


def describe_values(batch: Batch) -> dict[str, Metric]:
    """Values and returns of a step as first and second moments over the trained tokens, which merge exactly."""
    if batch.values is None or batch.returns is None:
        return {}
    mask = batch.loss_mask
    values, returns = batch.values[mask].double(), batch.returns[mask].double()
    moments = {
        "critic/value_mean": values,
        "critic/return_mean": returns,
        "critic/return_square_mean": returns.square(),
        "critic/residual_mean": returns - values,
        "critic/residual_square_mean": (returns - values).square(),
    }
    return {name: Metric(Reduction.MEAN, torch.sum(of), mask.sum()) for name, of in moments.items()}
