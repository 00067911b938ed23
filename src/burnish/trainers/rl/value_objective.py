"""What an optimizer step of a critic minimises, alone or together with a policy that shares its backbone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.value_losses import clipped_value, value_metrics
from burnish.forward.batch import Batch
from burnish.forward.token_scores import TokenScores
from burnish.models.roles import Denominators, ObjectiveValue, ValueObjective
from burnish.trainers.rl.objective import PolicyObjective, aggregate_step, share


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
        loss = aggregate_step(per_token, batch, self.aggregation, self.length, denominators)
        metrics = value_metrics(values_BT, batch.values, batch.returns, mask, clip=self.clip)
        metrics["loss"] = share(loss, mask, denominators)
        return ObjectiveValue(loss, {f"critic/{name}": metric for name, metric in metrics.items()})


@dataclass(frozen=True, slots=True)
class WeightedValueObjective:
    """A value loss times a constant. The loss is logged without the constant."""

    objective: ValueObjective
    weight: float

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        value = self.objective(values_BT, batch, denominators)
        return ObjectiveValue(self.weight * value.loss, value.metrics)


@dataclass(frozen=True, slots=True)
class ActorCriticObjective:
    """Policy loss + coef * value loss, for a critic that shares the policy's backbone."""

    policy: PolicyObjective
    value: ValueObjective
    coef: float

    def with_kl_coef(self, kl_coef: float) -> ActorCriticObjective:
        """The same objective with another KL coefficient."""
        return dataclasses.replace(self, policy=self.policy.with_kl_coef(kl_coef))

    @property
    def needs_entropy(self) -> bool:
        return self.policy.needs_entropy

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        if scores.values_BT is None:
            raise ValueError("the policy gives no values: a critic must share its backbone first")
        policy = self.policy(scores, batch, denominators)
        value = self.value(scores.values_BT, batch, denominators)
        loss = policy.loss + self.coef * value.loss
        return ObjectiveValue(loss, {**policy.metrics, **value.metrics}, policy.signals)
