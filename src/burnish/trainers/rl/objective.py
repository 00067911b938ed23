"""Objectives of an optimizer step of policy, critic or both: pure functions of fresh scores and a batch, to which each
micro-batch adds its share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from burnish.algorithms.aggregation import aggregate
from burnish.algorithms.kl import kl_loss
from burnish.algorithms.masking import fill_masked
from burnish.algorithms.mismatch import mismatch_metrics, off_policy_tokens, ratio_deviation
from burnish.algorithms.policy_losses import PolicyLoss
from burnish.algorithms.token_losses import clipped_value, dynamic_nll, value_metrics
from burnish.forward.batch import Batch, TokenScores, present
from burnish.models.roles import Denominators, ObjectiveValue, RowEntropies, Signals, ValueObjective
from burnish.types import Metric, Reduction


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Policy loss + KL in the loss - entropy bonus, aggregated over the optimizer step.

    `policy_loss` has the signature of `burnish.algorithms.policy_losses`; `numbers` are its keyword arguments, besides
    the tensors that it `takes`. If the batch has no old log-probabilities, this is the first step since they would have
    been computed, and the fresh ones, detached, are the old ones. `old_logprobs_of_sampler`: the batch has the
    sampler's. `correction`: for the mismatch of sampler and trainer, `burnish.algorithms.mismatch.correction_weights`
    with its keyword arguments. `off_policy_delta`: drops bad responses that the policy has left by more than this
    (`off_policy_tokens`).
    """

    policy_loss: Callable[..., PolicyLoss]
    numbers: Mapping[str, object]
    aggregation: str
    length: int
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_times_ratio: bool = False
    entropy_coef: float = 0.0
    correction: Callable[..., Tensor] | None = None
    off_policy_delta: float | None = None
    takes: Collection[str] = ()
    old_logprobs_of_sampler: bool = False
    needs_entropy: bool = True  # for a chart and an alarm; it costs no further pass

    def with_kl_coef(self, kl_coef: float) -> PolicyObjective:
        """The same objective with another coefficient: an adaptive one changes from step to step."""
        return dataclasses.replace(self, kl_coef=kl_coef)

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        mask, logprobs = batch.loss_mask, scores.logprobs_BT
        # Detached, so that the ratio is exactly 1 and still has the gradient of the log-probability.
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        known = {"selection_BT": batch.selection, "turn_index_BT": batch.turn_index}
        taken = {name: known[name] for name in self.takes}
        result = self.policy_loss(logprobs, old, batch.advantages, mask, **self.numbers, **taken)
        per_token, metrics = result.per_token_BT, dict(result.metrics)
        if self.correction is not None:
            sampled_with = present(batch.rollout_logprobs, "rollout_logprobs")
            per_token = per_token * self.correction(old, sampled_with, mask, turn_index_BT=batch.turn_index)
        if self.off_policy_delta is not None:
            dropped = _off_policy(logprobs, batch, self.off_policy_delta)
            per_token, metrics["off_policy_fraction"] = per_token * ~dropped, _mean(dropped, mask)
        loss = self._aggregate(weighted(per_token, batch), batch, denominators)
        if self.kl_coef > 0:
            reference, weighed_by = present(batch.ref_logprobs, "ref_logprobs"), old if self.kl_times_ratio else None
            penalty = kl_loss(logprobs, reference, mask, estimator=self.kl_estimator, old_logprobs_BT=weighed_by)
            kl_term = self._aggregate(penalty, batch, denominators)
            loss = loss + self.kl_coef * kl_term
            metrics["kl_loss"] = share(kl_term, mask, denominators)
        if scores.entropy_BT is not None:
            metrics["entropy"] = _mean(scores.entropy_BT, mask)
            if self.entropy_coef > 0:
                loss = loss - self.entropy_coef * self._aggregate(scores.entropy_BT, batch, denominators)
        metrics["loss"] = share(loss, mask, denominators)
        # Relative to the policy at the beginning of the step, the ratio should begin at 1; relative to a sampler of
        # earlier weights, it need not.
        begins_at_1 = batch.old_logprobs is not None and not self.old_logprobs_of_sampler
        signals = Signals(
            ratio_deviation=ratio_deviation(logprobs, old, mask) if begins_at_1 else None,
            approx_kl=result.metrics.get("approx_kl"),  # a user's loss need not measure it
        )
        named = {f"policy/{name}": metric for name, metric in metrics.items()}
        if batch.rollout_logprobs is not None:
            # The trainer's, whatever the ratio is relative to: the metrics say how far the two are apart.
            trainers = logprobs.detach() if self.old_logprobs_of_sampler else old
            mismatch = mismatch_metrics(trainers, batch.rollout_logprobs, mask)
            named |= {f"rollout/{name}": metric for name, metric in mismatch.items()}
        rows_B, entropy_BT = batch.row_numbers, scores.entropy_BT
        kept = None if rows_B is None or entropy_BT is None else RowEntropies(rows_B, entropy_BT.detach())
        return ObjectiveValue(loss, named, signals, kept)

    def _aggregate(self, per_token: Tensor, batch: Batch, denominators: Denominators) -> Tensor:
        return aggregate_step(per_token, batch, self.aggregation, self.length, denominators)


def aggregate_step(per_token_BT: Tensor, batch: Batch, mode: str, length: int, denominators: Denominators) -> Tensor:
    """A micro-batch's share of the loss of its optimizer step."""
    # Divided by counts of the whole step, so that the sum does not depend on how it was cut.
    return aggregate(
        per_token_BT,
        batch.loss_mask,
        mode,
        num_tokens=denominators.num_tokens,
        num_sequences=denominators.num_sequences,
        num_turns=denominators.num_turns,
        length=length,
        turn_index_BT=batch.turn_index,
    )


@dataclass(frozen=True, slots=True)
class TeacherObjective:
    """Divergence from a teacher at each trained token of the policy's responses, times the weight of the row's teacher,
    aggregated over the optimizer step like a policy loss. Advantages have no part in it."""

    aggregation: str
    length: int
    needs_entropy: bool = False

    def with_kl_coef(self, kl_coef: float) -> TeacherObjective:
        """The same objective, which holds no KL to a reference."""
        return self

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        mask, divergence = batch.loss_mask, present(scores.divergence_BT, "divergence")
        per_token = present(batch.teacher_weights, "teacher_weights")[:, None] * divergence
        loss = aggregate_step(weighted(per_token, batch), batch, self.aggregation, self.length, denominators)
        measured = {
            "policy/loss": share(loss, mask, denominators),
            "policy/teacher_divergence": _mean(divergence, mask),
            "policy/teacher_agreement": _mean(present(scores.agrees_BT, "agreement"), mask),
        }
        sampled_with, own = present(batch.rollout_logprobs, "rollout_logprobs"), scores.logprobs_BT.detach()
        mismatch = mismatch_metrics(own, sampled_with, mask)
        return ObjectiveValue(loss, measured | {f"rollout/{name}": metric for name, metric in mismatch.items()})


@dataclass(frozen=True, slots=True)
class LikelihoodObjective:
    """Supervised fine-tuning: mean loss of the optimizer step's trained tokens, each times its weight.

    The loss of a token is its negative log-likelihood, with `dynamic` times its probability (`dynamic_nll`). Weights
    have mean 1 over the step (`burnish.trainers.sft.token_weights`), so the number of tokens is the denominator.
    """

    dynamic: bool = False
    needs_entropy: bool = False

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        mask, losses = batch.loss_mask, {"loss": -scores.logprobs_BT}
        if self.dynamic:
            losses = {"loss": dynamic_nll(scores.logprobs_BT, mask), "cross_entropy": -scores.logprobs_BT}
        loss = aggregate(weighted(losses["loss"], batch), mask, "token_mean", num_tokens=denominators.num_tokens)
        return ObjectiveValue(loss, {f"train/{name}": _weighted_mean(each, batch) for name, each in losses.items()})


def weighted(per_token_BT: Tensor, batch: Batch) -> Tensor:
    """Multiply the losses of tokens by the weights of a batch that has some."""
    return per_token_BT if batch.weights is None else per_token_BT * batch.weights


def _weighted_mean(values_BT: Tensor, batch: Batch) -> Metric:
    if batch.weights is None:
        return _mean(values_BT, batch.loss_mask)
    total, weight = (fill_masked(each, batch.loss_mask).sum() for each in (values_BT * batch.weights, batch.weights))
    return Metric(Reduction.MEAN, total.detach(), weight)


def _off_policy(logprobs_BT: Tensor, batch: Batch, delta: float) -> Tensor:
    sampled_with, advantages = present(batch.rollout_logprobs, "rollout_logprobs"), batch.advantages
    return off_policy_tokens(logprobs_BT, sampled_with, present(advantages, "advantages"), batch.loss_mask, delta=delta)


@dataclass(frozen=True, slots=True)
class DistillObjective:
    """Mean divergence from a teacher of the optimizer step's trained tokens, mixed with their mean negative
    log-likelihood. `own_texts`: the student has sampled them, so their likelihood teaches nothing."""

    hard_weight: float = 0.0
    own_texts: bool = False
    needs_entropy: bool = False

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        mask, weight = batch.loss_mask, 0.0 if self.own_texts else self.hard_weight
        divergence, nll = present(scores.divergence_BT, "divergence"), -scores.logprobs_BT
        per_token = (1 - weight) * divergence + weight * nll if weight else divergence
        loss = aggregate(weighted(per_token, batch), mask, "token_mean", num_tokens=denominators.num_tokens)
        measured = {"loss": per_token, "divergence": divergence}
        measured |= {"agreement": present(scores.agrees_BT, "agreement")}
        measured |= {} if self.own_texts else {"cross_entropy": nll}
        return ObjectiveValue(loss, {f"train/{name}": _weighted_mean(each, batch) for name, each in measured.items()})


def _mean(values_BT: Tensor, mask_BT: Tensor) -> Metric:
    return Metric(Reduction.MEAN, fill_masked(values_BT.detach(), mask_BT).sum(), mask_BT.sum())


def share(term: Tensor, mask_BT: Tensor, denominators: Denominators) -> Metric:
    """A term's share from one micro-batch, as a metric. Shares add up to the value of the optimizer step: their weights
    add up to 1, and the mean over several steps is the mean of their values."""
    return Metric(Reduction.MEAN, term.detach(), mask_BT.sum() / max(denominators.num_tokens, 1))


@dataclass(frozen=True, slots=True)
class ClippedValueObjective:
    """Clipped squared error between values and returns, aggregated over the optimizer step like a policy loss, times a
    weight. The loss is logged without it."""

    clip: float | None
    aggregation: str
    length: int
    weight: float = 1.0

    def __call__(self, values_BT: Tensor, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        if batch.values is None or batch.returns is None:
            raise ValueError("the batch lacks the values or returns that the value loss needs")
        mask = batch.loss_mask
        per_token = clipped_value(values_BT, batch.values, batch.returns, clip=self.clip, mask_BT=mask)
        loss = aggregate_step(per_token, batch, self.aggregation, self.length, denominators)
        metrics = value_metrics(values_BT, batch.values, batch.returns, mask, clip=self.clip)
        metrics["loss"] = share(loss, mask, denominators)
        return ObjectiveValue(self.weight * loss, {f"critic/{name}": metric for name, metric in metrics.items()})


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
        return dataclasses.replace(policy, loss=loss, metrics={**policy.metrics, **value.metrics})
