"""The gradient of an optimizer step that is not made."""

from typing import Any

from torch import Tensor

from burnish.forward.batch import Batch
from burnish.models.policy import LocalPolicy
from burnish.models.roles import count_denominators
from burnish.observability.metrics import MetricStore


def gradient_of(policy: LocalPolicy, batch: Batch, objective: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients by name of the weights that have one, and the metrics of the micro-batches."""
    policy.accumulate(batch, objective, count_denominators(batch))
    gradients, metrics = policy.take_gradient()
    named = zip(policy.trainable_parameters(), gradients, strict=True)
    return {name: own for (name, _), own in named if own is not None}, MetricStore.of([metrics]).row()
