"""The loop of reinforcement learning. Everything it uses is built in `burnish.trainers.rl.setup.parts`.

prompts -> generate -> score -> filter/refill -> batch -> log-probabilities and values that the algorithm needs
-> advantages -> epochs x minibatches of updates of policy and critic -> sync the engine -> log, checkpoint, evaluate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from burnish.algorithms.advantages import Estimator
from burnish.algorithms.kl import KLController, k1, k3
from burnish.algorithms.ratios import beyond_limit, highest_entropy
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.errors import DivergenceError
from burnish.forward.batch import Batch, TokenScores, present
from burnish.models.roles import (
    Critic,
    Learner,
    Objective,
    Policy,
    Reference,
    RowEntropies,
    Signals,
    Update,
    ValueObjective,
    count_denominators,
)
from burnish.observability.metrics import MetricStore, Stopwatch, mean, total
from burnish.observability.recorder import TokenValues
from burnish.rollouts.outages import Patience
from burnish.trainers.outer_loop import Controller, Training
from burnish.trainers.result import CRITIC_FOLDER, WEIGHTS_FOLDER
from burnish.trainers.rl.batching import build_batch, epoch_rows, scored
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.credit import credit_rows, whiten_minibatch
from burnish.trainers.rl.credit.by_domain import DomainCredit, Row
from burnish.trainers.rl.evaluation import Evaluator, held_out_values
from burnish.trainers.rl.lessons import Lessons, distance_to_teacher, teacher_weights
from burnish.trainers.rl.setup.roles import ALONE, Beside
from burnish.trainers.rl.supply import Supply
from burnish.trainers.telemetry.divergence import keeping_batch
from burnish.trainers.telemetry.groups import without_scores
from burnish.trainers.telemetry.moments import derive
from burnish.trainers.telemetry.rollout_notes import rollout_notes
from burnish.types import Metric, Reduction

TokenSelection = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]
"""From (logprobs, old logprobs, advantages, mask) of a whole minibatch to the tokens that the loss treats specially;
all are (B, T)."""


@dataclass(slots=True, kw_only=True)
class RlRun(Training):
    """The parts of a run. Each is a small protocol, so it can be a local object or a handle to a remote one."""

    config: RlConfig
    policy: Policy
    reference: Reference | None
    supply: Supply
    evaluator: Evaluator | None
    estimator: Estimator
    objective: Callable[[float], Objective]
    """Gives the policy's objective for a KL coefficient."""
    select_tokens: TokenSelection | None
    kl: KLController
    pad_token_id: int
    critic: Critic | None = None
    value_objective: ValueObjective | None = None
    """Objective of a critic that is trained alone."""
    domain_credit: DomainCredit | None = None
    """Normalisation and weights by domain; None for a run without domains."""
    lessons: Lessons | None = None
    """The teachers and what they read; None for a run without any."""
    beside: Beside = ALONE
    """The models that work while others do."""

    def learners(self) -> dict[str, Learner]:
        policy: dict[str, Learner] = {WEIGHTS_FOLDER: self.policy}
        return policy if self.critic is None else policy | {CRITIC_FOLDER: self.critic}

    def controllers(self) -> dict[str, Controller]:
        found: dict[str, Controller] = {"kl": self.kl}
        if self.domain_credit is not None:
            # Of the steps that were trained on; what the supply holds beyond them is counted again (see `difficulty`).
            found |= {"rates": self.domain_credit.domains.rates, "scores": self.domain_credit}
        return {**found, **self.supply.controllers()}

    def train_step(self) -> dict[str, float]:
        """One step: sample, score, assign credit, update."""
        step, metrics, stopwatch = self.progress.step + 1, MetricStore(), Stopwatch(self.journal.phase)
        collected = self.supply.take(step, stopwatch)
        metrics.merge(collected.metrics)
        why = partial(self.supply.collector.domains.why_left_out, step=step)
        entropies: list[RowEntropies] = []
        try:
            batch = self.prepare(collected, stopwatch, metrics)
            if batch is not None:
                with stopwatch.phase("update"):
                    entropies = self.update(batch, step, metrics)
        except DivergenceError:
            # The rollouts are part of the evidence.
            self.journal.record(step, collected.sampled, rollout_notes(collected, None, why))
            raise
        # After the updates: the coefficient that a step began with holds for all of its minibatches.
        if batch is not None and batch.ref_logprobs is not None:
            metrics.merge(steer_kl(batch, self.kl, self.config.algorithm))
        try:
            with stopwatch.phase("record"):
                self.journal.record(step, collected.sampled, rollout_notes(collected, batch, why, entropies))
            self.supply.publish(self.policy.publish(), step)
        finally:  # the weights have moved: whatever happens now, the step's metrics are saved with them
            metrics.merge(stopwatch.metrics())
            row = derive(metrics.row() if self.config.has_scores else without_scores(metrics.row()))
            self.progress.advance(collected.positions, row)
            if self.domain_credit is not None:
                self.domain_credit.commit()
        return row

    def prepare(self, collected: Collected, stopwatch: Stopwatch, metrics: MetricStore) -> Batch | None:
        """Scored responses as a batch with advantages and everything else that the updates need; None if nothing can be
        learned from any response of the step."""
        config, rows = self.config, scored(collected.groups)
        if not rows:
            return None
        truncated = config.algorithm.mask_truncated
        batch = build_batch([rollout for _, rollout in rows], pad_token_id=self.pad_token_id, mask_truncated=truncated)
        # Begun early: a critic in its own process computes while the policy does.
        values = None if self.critic is None else self.beside.begin("critic", partial(self.critic.values, batch))
        with stopwatch.phase("logprobs"):
            batch = self.add_logprobs(batch, rows)
        if batch.teacher_logprobs is not None and batch.old_logprobs is not None:
            metrics.merge(distance_to_teacher(batch))
        if values is not None:
            with stopwatch.phase("values"):
                batch = batch.replace(values=values())
        batch, credit_metrics = credit_rows(
            batch, rows, config=config, estimator=self.estimator, kl_coef=self.kl.coef, domain_credit=self.domain_credit
        )
        metrics.merge(credit_metrics)
        return batch

    def add_logprobs(self, batch: Batch, rows: Sequence[Row]) -> Batch:
        """Add log-probabilities of the sampling weights, if an update, the KL or the estimator needs them, and of
        reference and teachers. With `algorithm.top_entropy`, only the tokens of highest entropy get a weight above
        0."""
        optimization, algorithm, rollout = self.config.optimization, self.config.algorithm, self.config.rollout
        # Begun before the policy's own pass, for the same reason.
        if self.reference is not None:
            reference = self.beside.begin("reference", partial(self.reference.logprobs, batch))
        if (lessons := self.lessons) is not None:
            teacher = self.beside.begin("teacher", partial(lessons.logprobs, batch, rows))
        # With top-k, top-p or min-p the sampler's log-probabilities are of the cut distribution: the KL needs ours.
        cut_off = rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0
        # A single update needs none: its own log-probabilities are the old ones (`PolicyObjective`), a forward saved.
        several_updates = optimization.epochs * optimization.minibatches > 1
        reads_old = algorithm.kl_in == "reward" or "old_logprobs_BT" in self.estimator.inputs
        of_sampler, share = self.config.old_logprobs_of_sampler, algorithm.top_entropy
        if of_sampler:
            batch = batch.replace(old_logprobs=present(batch.rollout_logprobs, "rollout_logprobs"))
        needs_old = not of_sampler and (several_updates or reads_old or (cut_off and self.reference is not None))
        if needs_old or share is not None:
            scores = self.policy.logprobs(batch, entropy=share is not None)
            batch = batch.replace(old_logprobs=scores.logprobs_BT) if needs_old else batch
            batch = batch if share is None else ranked(batch, scores, share)
        if lessons is not None:
            batch = batch.replace(teacher_logprobs=teacher(), teacher_weights=teacher_weights(rows, lessons.by_domain))
        return batch if self.reference is None else batch.replace(ref_logprobs=reference())

    def update(self, batch: Batch, step: int, metrics: MetricStore) -> list[RowEntropies]:
        """epochs x minibatches optimizer steps of policy and critic. Stops after an epoch that moved the policy further
        than `algorithm.max_epoch_kl`. Returns the entropies of the first epoch, if rollouts are recorded."""
        config, optimization, objective = self.config, self.config.optimization, self.objective(self.kl.coef)
        minibatches, shuffle = optimization.minibatches, optimization.shuffle
        skips, bound = config.algorithm.skip_zero_advantages, config.algorithm.max_epoch_kl
        warming_up = self.critic is not None and step <= config.critic.warmup_steps
        entropies: list[RowEntropies] = []
        unmoved = True  # the first update of a step starts from the weights that sampled
        for epoch in range(optimization.epochs):
            moved = Signals()
            # Updates are numbered as if the run skipped none: learning rates follow the number.
            first = ((step - 1) * optimization.epochs + epoch) * minibatches
            order = epoch_rows(
                batch.group_ids, minibatches=minibatches, shuffle=shuffle, seed=config.seed, step=step, epoch=epoch
            )
            kept = torch.arange(len(batch)) if config.logging.keeps_rollouts and epoch == 0 else None
            for planned, rows in enumerate(order, start=first):
                minibatch = batch.replace(row_numbers=kept).select(rows)
                if config.whitens_minibatches:
                    minibatch, found = whiten_minibatch(minibatch, algorithm=config.algorithm, estimator=self.estimator)
                    metrics.merge(found)
                if self.select_tokens is not None and not warming_up:
                    minibatch = with_selection(minibatch, self.policy, self.select_tokens)
                with keeping_batch(Path(config.output), step, minibatch):
                    critic_update = None
                    if self.critic is not None:
                        critic_update = self.begin_critic(self.critic, minibatch, planned, warming_up=warming_up)
                    if not warming_up:
                        # Counted before rows without gradient are left out, which must not change the others' weight.
                        denominators = count_denominators(minibatch)
                        part = with_gradient(minibatch) if skips else minibatch
                        done = self.policy.update(part, objective, denominators=denominators, planned_step=planned)
                        # Before any update the ratio should be 1: a deviation is an error of the passes, not learning.
                        if unmoved and done.signals.ratio_deviation is not None:
                            metrics.add("policy/first_ratio_deviation", done.signals.ratio_deviation)
                            unmoved = False
                        metrics.merge(with_left_out(done.metrics, part, minibatch) if skips else done.metrics)
                        metrics.add("policy/optimizer_steps", total(1))
                        moved = moved.merge(done.signals)
                        entropies += done.entropies
                    if critic_update is not None:
                        metrics.merge(critic_update().metrics)
                        metrics.add("critic/optimizer_steps", total(1))
            metrics.add("policy/epochs", total(1))
            if bound is not None and moved.approx_kl is not None and (moved.approx_kl.result() or 0.0) > bound:
                break
        return entropies

    def begin_critic(self, critic: Critic, minibatch: Batch, planned: int, *, warming_up: bool) -> Callable[[], Update]:
        """One optimizer step of the critic, to be waited for. A head on the policy's backbone is trained by the
        policy's update, except while the critic warms up alone."""
        if self.value_objective is None or (critic.shares_trunk and not warming_up):
            return partial(Update, {})
        call = partial(critic.update, minibatch, self.value_objective, planned_step=planned)
        return self.beside.begin("critic", call)

    def evaluate(self) -> dict[str, float]:
        """Metrics of the current policy on the held-out prompts; records their rollouts."""
        if self.evaluator is None:
            return {}
        values: TokenValues = {}
        with self.supply.evaluating():
            patience = self.supply.collector.patience if self.progress.step else Patience()
            metrics, groups = patience.through(self.evaluator.evaluate)
        if self.critic is not None:
            expected, values = held_out_values(self.critic, groups, pad_token_id=self.pad_token_id)
            metrics |= expected
        self.journal.record_evaluation(self.progress.step, groups, values)
        return MetricStore.of([metrics]).row()


def ranked(batch: Batch, scores: TokenScores, share: float) -> Batch:
    """The step with weight 1 for the share of its trained tokens that has the highest entropy, and 0 for the rest."""
    chosen = highest_entropy(present(scores.entropy_BT, "entropy_BT"), batch.loss_mask, share=share)
    return batch.replace(weights=chosen.float())


def with_selection(minibatch: Batch, policy: Policy, select: TokenSelection) -> Batch:
    """The minibatch with the tokens that the loss treats specially: chosen over all of it with the weights of this
    moment, before micro-batches see only parts of it."""
    fresh = policy.logprobs(minibatch).logprobs_BT
    old = fresh if minibatch.old_logprobs is None else minibatch.old_logprobs
    chosen = select(fresh, old, present(minibatch.advantages, "advantages"), minibatch.loss_mask)
    return minibatch.replace(selection=chosen)


def with_gradient(minibatch: Batch) -> Batch:
    """The rows that can change a weight: they have a trained token whose advantage is not 0."""
    has_gradient_B = (minibatch.loss_mask & (present(minibatch.advantages, "advantages") != 0)).any(dim=1)
    return minibatch.select(has_gradient_B.nonzero()[:, 0])


def with_left_out(metrics: Mapping[str, Metric], part: Batch, minibatch: Batch) -> dict[str, Metric]:
    """Correct the metrics of an update on `part` of a minibatch: the rows left out have a loss of 0."""
    share = 1 - int(part.loss_mask.sum()) / max(int(minibatch.loss_mask.sum()), 1)
    loss = mean(0.0, share)
    return {
        **metrics,
        "policy/loss": metrics["policy/loss"].merge(loss) if "policy/loss" in metrics else loss,
        "policy/skipped_fraction": mean(len(minibatch) - len(part), len(minibatch)),
    }


def steer_kl(batch: Batch, controller: KLController, algorithm: AlgorithmConfig) -> dict[str, Metric]:
    """Let the controller react to the KL between the policy and the reference on the step's responses. Returns what to
    log.

    The batch has `ref_logprobs`, and log-probabilities under the weights that sampled it.
    """
    mask = batch.loss_mask
    # Log-probabilities from before the first update: the trainer's, if it computed them, otherwise the sampler's.
    sampled_with = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    policy, reference = present(sampled_with, "rollout_logprobs"), present(batch.ref_logprobs, "ref_logprobs")
    log_ratio = k1(policy, reference, mask=mask)
    per_response = log_ratio.sum(dim=1)
    num_sequences = int(mask.any(dim=1).sum())
    used = controller.coef  # this step's objective had this one; the controller sets it for the next step
    if num_sequences:
        controller.update(float(per_response.sum()) / num_sequences, num_sequences)
    metrics = {
        "kl/reference": Metric(Reduction.MEAN, per_response.sum(), num_sequences),
        "kl/reference_per_token": Metric(Reduction.MEAN, k3(policy, reference, mask=mask).sum(), mask.sum()),
        "kl/coef": Metric(Reduction.LAST, used),
    }
    if algorithm.kl_target is not None:
        metrics["kl/target"] = Metric(Reduction.LAST, algorithm.kl_target)
    # Only k3 clamps its log-ratio; a clamped token adds a constant to the loss and has no gradient.
    if algorithm.kl_function == "k3":
        metrics["kl/clamped_fraction"] = Metric(Reduction.MEAN, beyond_limit(log_ratio).sum(), mask.sum())
    return metrics
