"""From a step's scored responses to its batch with advantages, as the run file says. A replay does the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.algorithms.advantages import Estimator
from burnish.config.schema import RlConfig
from burnish.forward.batch import Batch
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.batching import build_rewards, with_states
from burnish.trainers.rl.credit import assign_advantages
from burnish.trainers.rl.domain_credit import DomainCredit, Row
from burnish.trainers.telemetry.moments import describe_values
from burnish.types import Metric


def credit_rows(
    batch: Batch,
    rows: Sequence[Row],
    *,
    config: RlConfig,
    estimator: Estimator,
    reward_weights: Mapping[str, float],
    kl_coef: float,
    domain_credit: DomainCredit | None,
) -> tuple[Batch, Mapping[str, Metric]]:
    """The batch with advantages (whitened, unless that is left to minibatches), and what to log.

    rows: of the batch, in its order. The batch has what the algorithm needs: values, log-probabilities. reward_weights:
    by label. domain_credit: None for a run without domains.
    """
    metrics = MetricStore()
    rewards = build_rewards(rows, dict(reward_weights))
    if estimator.needs_states:
        rewards = with_states(rewards, [rollout for _, rollout in rows])
    if domain_credit is not None:
        rewards = domain_credit.normalized(rewards, batch, rows)
    batch, credit_metrics = assign_advantages(
        batch,
        rewards,
        algorithm=config.algorithm,
        estimator=estimator,
        kl_coef=kl_coef,
        whiten=not config.whitens_minibatches,
    )
    metrics.merge(credit_metrics)
    if not config.whitens_minibatches:
        metrics.merge(describe_values(batch))
    weighted = batch if domain_credit is None else domain_credit.weighted(batch, rows)
    return weighted, metrics.merged()
