"""What an optimizer step minimises: pure functions of fresh scores and a batch, shared out over micro-batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.aggregation import aggregate
from burnish.algorithms.kl import kl_loss
from burnish.algorithms.masking import fill_masked
from burnish.algorithms.mismatch import correction_weights, mismatch_metrics, ratio_deviation
from burnish.algorithms.policy_losses import PolicyLoss
from burnish.forward.batch import Batch, present
from burnish.forward.token_scores import TokenScores
from burnish.models.roles import Denominators, ObjectiveValue, Signals
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class Correction:
    """Importance correction for the sampler/trainer mismatch (`burnish.algorithms.mismatch`)."""

    level: str
    mode: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Policy loss + KL in the loss - entropy bonus, aggregated over the optimizer step.

    `policy_loss` has the signature of `burnish.algorithms.policy_losses`; `numbers` are its keyword arguments. Without
    old log-probabilities in the batch the step is the first since sampling and the fresh ones, detached, are the old.
    """

    policy_loss: Callable[..., PolicyLoss]
    numbers: Mapping[str, object]
    aggregation: str
    length: int
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_times_ratio: bool = False
    entropy_coef: float = 0.0
    correction: Correction | None = None
    takes_selection: bool = False
    needs_entropy: bool = True  # a chart and an alarm watch it, and it costs nothing but the forward walk

    def with_kl_coef(self, kl_coef: float) -> PolicyObjective:
        """The same with another coefficient: an adaptive one changes from step to step."""
        return dataclasses.replace(self, kl_coef=kl_coef)

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        mask, logprobs = batch.loss_mask, scores.logprobs_BT
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        result = self.policy_loss(logprobs, old, batch.advantages, mask, **self._numbers(batch))
        per_token = self._weighted(result.per_token_BT, old, batch)
        policy_term = self._aggregate(per_token, mask, denominators)
        loss, metrics = policy_term, dict(result.metrics)
        if self.kl_coef > 0:
            penalty = kl_loss(
                logprobs,
                present(batch.ref_logprobs, "ref_logprobs"),
                mask,
                estimator=self.kl_estimator,
                old_logprobs_BT=old if self.kl_times_ratio else None,
            )
            kl_term = self._aggregate(penalty, mask, denominators)
            loss = loss + self.kl_coef * kl_term
            metrics["kl_loss"] = share(kl_term, mask, denominators)
        if scores.entropy_BT is not None:
            metrics["entropy"] = _mean(scores.entropy_BT, mask)
            if self.entropy_coef > 0:
                loss = loss - self.entropy_coef * self._aggregate(scores.entropy_BT, mask, denominators)
        metrics["loss"] = share(loss, mask, denominators)
        signals = Signals(
            ratio_deviation=None if batch.old_logprobs is None else ratio_deviation(logprobs, old, mask),
            approx_kl=result.metrics.get("approx_kl"),  # a loss from outside need not measure it
        )
        return ObjectiveValue(loss, {f"policy/{k}": v for k, v in metrics.items()} | _mismatch(old, batch), signals)

    def _numbers(self, batch: Batch) -> dict[str, object]:
        return {**self.numbers, "selection_BT": batch.selection} if self.takes_selection else dict(self.numbers)

    def _weighted(self, per_token: Tensor, old: Tensor, batch: Batch) -> Tensor:
        if self.correction is not None:
            c = self.correction
            weights = correction_weights(
                old,
                present(batch.rollout_logprobs, "rollout_logprobs"),
                batch.loss_mask,
                level=c.level,
                mode=c.mode,
                low=c.low,
                high=c.high,
            )
            per_token = per_token * weights
        return per_token if batch.weights is None else per_token * batch.weights

    def _aggregate(self, per_token: Tensor, mask: Tensor, denominators: Denominators) -> Tensor:
        return aggregate_step(per_token, mask, self.aggregation, self.length, denominators)


def aggregate_step(per_token_BT: Tensor, mask_BT: Tensor, mode: str, length: int, denominators: Denominators) -> Tensor:
    """A micro-batch's share of the loss of its optimizer step; `length` is used by the mode that asks for it."""
    return aggregate(
        per_token_BT,
        mask_BT,
        mode,
        num_tokens=denominators.num_tokens,
        num_sequences=denominators.num_sequences,
        length=length if mode == "sequence_mean_token_sum_norm" else None,
    )


@dataclass(frozen=True, slots=True)
class LikelihoodObjective:
    """Supervised fine-tuning: mean negative log-likelihood of the trained tokens of the optimizer step."""

    needs_entropy: bool = False

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        nll = -scores.logprobs_BT
        loss = aggregate(nll, batch.loss_mask, "token_mean", num_tokens=denominators.num_tokens)
        return ObjectiveValue(loss, {"train/loss": _mean(nll, batch.loss_mask)})


def _mismatch(trainer_logprobs: Tensor, batch: Batch) -> dict[str, Metric]:
    """Nothing for responses that came without the sampler's log-probabilities."""
    if batch.rollout_logprobs is None:
        return {}
    metrics = mismatch_metrics(trainer_logprobs, batch.rollout_logprobs, batch.loss_mask)
    return {f"rollout/{name}": metric for name, metric in metrics.items()}


def _mean(values_BT: Tensor, mask_BT: Tensor) -> Metric:
    kept = fill_masked(values_BT.detach(), mask_BT)
    return Metric(Reduction.MEAN, kept.sum(), mask_BT.sum())


def share(term: Tensor, mask_BT: Tensor, denominators: Denominators) -> Metric:
    """Shares of micro-batches add up to the value of an optimizer step: their weights add up to 1, and the mean over
    several steps is the mean of their values."""
    return Metric(Reduction.MEAN, term.detach(), mask_BT.sum() / max(denominators.num_tokens, 1))
