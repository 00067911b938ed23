"""The loop of reinforcement learning, and nothing else: what it talks to is built in `burnish.trainers.rl.setup`.

prompts -> generate -> score -> filter/refill -> batch -> log-probabilities and values that the algorithm needs
-> advantages -> epochs x minibatches of updates of policy and critic -> sync the engine -> log, checkpoint, evaluate
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from burnish.algorithms.advantages import Estimator
from burnish.algorithms.kl import KLController, k1, k3
from burnish.algorithms.ratios import beyond_limit, log_ratio
from burnish.checkpointing.pending import Pending
from burnish.config.schema import RlConfig
from burnish.errors import DivergenceError, RolloutError
from burnish.forward.batch import Batch
from burnish.models.accumulation import count_denominators, merge_into
from burnish.models.roles import Critic, Objective, Policy, Reference, Signals, Update, ValueObjective
from burnish.observability.metrics import MetricStore, variance_of
from burnish.observability.recorder import TokenValues
from burnish.rollouts.engine import RolloutEngine
from burnish.trainers.divergence import keeping_batch
from burnish.trainers.interrupt import StopRequest
from burnish.trainers.journal import Journal
from burnish.trainers.orderly import Finished, saving_finished_steps
from burnish.trainers.rl.batching import build_batch, build_outcome, scored
from burnish.trainers.rl.collection import Collected, Collector
from burnish.trainers.rl.credit import assign_advantages, whiten_minibatch
from burnish.trainers.rl.evaluation import Evaluator
from burnish.trainers.rl.held_out_values import held_out_values
from burnish.trainers.rl.minibatches import epoch_rows
from burnish.trainers.rl.value_objective import derive_values, describe_values
from burnish.trainers.stopwatch import Stopwatch
from burnish.types import Metric, Reduction

TokenSelection = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor | None]
"""(logprobs, old logprobs, advantages, mask) of a whole minibatch to the tokens that the loss treats specially, all
(B, T)."""


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything else that is random follows from the seed and these numbers."""

    step: int = 0
    position: int = 0
    """Prompts drawn so far."""
    saved_step: int | None = None
    """Step of the newest checkpoint; None before the first."""
    pending: Pending | None = None
    """What is still to be done about the step: it has its weights, but no evaluation and no line of metrics yet."""
    versions: tuple[int, ...] = ()
    """Optimizer steps of policy and critic when the present step began."""


@dataclass(slots=True)
class RlRun:
    """The parts of a run. Each is a small protocol: a local object or a handle to a remote one."""

    config: RlConfig
    policy: Policy
    reference: Reference | None
    engine: RolloutEngine
    collector: Collector
    evaluator: Evaluator | None
    estimator: Estimator
    objective: Callable[[float], Objective]
    """The objective for a KL coefficient."""
    select_tokens: TokenSelection | None
    kl: KLController
    reward_weights: dict[str, float]
    pad_token_id: int
    journal: Journal
    save: Callable[[RlRun], None]
    progress: Progress = field(default_factory=Progress)
    critic: Critic | None = None
    value_objective: ValueObjective | None = None
    """What a critic minimises when it is trained by itself."""


def run_loop(run: RlRun, stop: StopRequest) -> None:
    """Train from where `run.progress` stands to the last step, or until asked to stop; always leaves a checkpoint."""
    with saving_finished_steps(partial(finished, run), run.journal.display.note):
        _run_steps(run, stop)


def _run_steps(run: RlRun, stop: StopRequest) -> None:
    config, progress = run.config, run.progress
    # A run stopped before its first step has a checkpoint of step 0, and its evaluation is written.
    if progress.saved_step is None and config.evaluation.begins and run.evaluator is not None:
        run.journal.write(0, evaluate(run))
    if progress.pending is not None:  # an error stopped the run after the updates of its last step
        close_step(run, progress.pending.row)
    while progress.step < config.steps and not stop:
        close_step(run, train_step(run))
    if progress.saved_step != progress.step:
        save(run)


def close_step(run: RlRun, row: dict[str, float]) -> None:
    """What follows a step's updates: evaluation, the line of metrics, a checkpoint."""
    config, progress = run.config, run.progress
    last = progress.step == config.steps
    if config.evaluation.due(progress.step, last=last):
        row = row | evaluate(run)
    run.journal.write(progress.step, row)
    progress.pending = None
    if config.checkpoint.due(progress.step, last=last) or run.journal.lacks_checkpoint(progress.saved_step):
        save(run)


def save(run: RlRun) -> None:
    """Write a checkpoint of the present step."""
    run.journal.check_place()
    run.save(run)
    run.progress.saved_step = run.progress.step


def finished(run: RlRun) -> Finished:
    """How far the run has come, as it can be saved when something ends the loop."""
    progress = run.progress
    moved = bool(progress.versions) and progress.versions != _versions(run)
    return Finished(progress.step, progress.saved_step, moved, progress.pending, partial(save, run))


def _versions(run: RlRun) -> tuple[int, ...]:
    return (run.policy.version,) if run.critic is None else (run.policy.version, run.critic.version)


def train_step(run: RlRun) -> dict[str, float]:
    """One step: sample, score, assign credit, update. Returns what to log."""
    progress, metrics = run.progress, MetricStore()
    step, progress.versions = progress.step + 1, _versions(run)
    stopwatch = Stopwatch(run.journal.display.phase)
    collected = run.collector.collect(step, run.progress.position, stopwatch)
    refuse_stale(collected, run.policy.version)
    metrics.merge(collected.metrics)
    try:
        batch = learn(run, collected, step, stopwatch, metrics)
    except DivergenceError:
        run.journal.record(step, collected, None)  # what was sampled is part of the evidence
        raise
    progress.step, progress.position, progress.versions = step, collected.position, ()
    try:
        with stopwatch.phase("record"):
            run.journal.record(step, collected, batch)
        run.engine.sync(run.policy)
    finally:  # whatever happens now, the step is made: its numbers are saved with it
        metrics.merge(run.collector.scorer.metrics())
        metrics.merge(run.engine.metrics())
        metrics.merge(stopwatch.metrics())
        progress.pending = pending = Pending(derive(metrics.row()))
    return pending.row


def refuse_stale(collected: Collected, version: int) -> None:
    """Synchronous: every rollout was sampled by the weights that now learn from it."""
    stale = sorted({r.policy_version for group in collected.sampled for r in group.rollouts} - {version})
    if stale:
        raise RolloutError(
            f"the engine sampled with version {stale[0]} of the policy, which is at version {version}",
            remedy="an engine takes the policy's weights and version over in sync()",
        )


def learn(run: RlRun, collected: Collected, step: int, stopwatch: Stopwatch, metrics: MetricStore) -> Batch | None:
    """From scored groups to new weights. None when no response of the step can be learned from."""
    rows = scored(collected.groups)
    if not rows:
        return None
    batch = build_batch(
        [rollout for _, rollout in rows],
        pad_token_id=run.pad_token_id,
        mask_truncated=run.config.algorithm.mask_truncated,
    )
    with stopwatch.phase("logprobs"):
        batch = add_logprobs(run, batch)
    if run.critic is not None:
        with stopwatch.phase("values"):
            batch = batch.replace(values=run.critic.values(batch))
    batch, credit_metrics = assign_advantages(
        batch,
        build_outcome(rows, run.reward_weights),
        algorithm=run.config.algorithm,
        estimator=run.estimator,
        kl_coef=run.kl.coef,
        whiten=not run.config.whitens_minibatches,
    )
    metrics.merge(credit_metrics)
    if not run.config.whitens_minibatches:
        metrics.merge(describe_values(batch))
    with stopwatch.phase("update"):
        update(run, batch, step, metrics)
    if batch.ref_logprobs is not None:
        metrics.merge(steer_kl(run, batch))
    return batch


def add_logprobs(run: RlRun, batch: Batch) -> Batch:
    """Old log-probabilities only when an update will make them differ from the current ones (or the KL needs them);
    the reference's only when there is a reference."""
    config, rollout = run.config, run.config.rollout
    several_updates = config.optimization.epochs * config.optimization.minibatches > 1
    # A sampler cut off by top-k, top-p or min-p reports log-probabilities of another distribution than the policy's.
    cut_off = rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0
    if several_updates or config.algorithm.kl_in == "reward" or (cut_off and run.reference is not None):
        batch = batch.replace(old_logprobs=run.policy.logprobs(batch).logprobs_BT)
    if run.reference is not None:
        batch = batch.replace(ref_logprobs=run.reference.logprobs(batch))
    return batch


def update(run: RlRun, batch: Batch, step: int, metrics: MetricStore) -> None:
    """epochs x minibatches optimizer steps of policy and critic, each epoch in a fresh order; ends before an epoch when
    the one before it moved the policy further than `algorithm.max_epoch_kl`."""
    bound, objective = run.config.algorithm.max_epoch_kl, run.objective(run.kl.coef)
    optimization = run.config.optimization
    # Where this step's updates stand in the plan of the run: learning rates follow that, however many are skipped.
    planned = (step - 1) * optimization.epochs * optimization.minibatches
    first = True  # no weight has moved yet: a minibatch without a trained token moves none
    for epoch in range(optimization.epochs):
        moved = Signals()
        order = epoch_rows(
            batch.group_ids,
            minibatches=optimization.minibatches,
            shuffle=optimization.shuffle,
            seed=run.config.seed,
            step=step,
            epoch=epoch,
        )
        for index, rows in enumerate(order, start=planned + epoch * optimization.minibatches):
            minibatch = whitened(run, batch.select(rows), metrics)
            done = update_minibatch(run, minibatch, step, objective, planned_step=index)
            if first and done.signals.ratio_deviation is not None:
                metrics.add("policy/first_ratio_deviation", done.signals.ratio_deviation)
                first = False
            metrics.merge(done.metrics)
            moved = moved.merge(done.signals)
        metrics.add("policy/epochs", Metric(Reduction.SUM, 1))
        moved_kl = None if moved.approx_kl is None else moved.approx_kl.result()
        if bound is not None and moved_kl is not None and moved_kl > bound:
            break


def whitened(run: RlRun, minibatch: Batch, metrics: MetricStore) -> Batch:
    """The minibatch as it is trained on: whitened by itself where `algorithm.whiten_over` says so."""
    if not run.config.whitens_minibatches:
        return minibatch
    minibatch, credit_metrics = whiten_minibatch(minibatch, algorithm=run.config.algorithm, estimator=run.estimator)
    metrics.merge(credit_metrics)
    metrics.merge(describe_values(minibatch))
    return minibatch


def update_minibatch(run: RlRun, minibatch: Batch, step: int, objective: Objective, *, planned_step: int) -> Update:
    """One optimizer step of the policy (not while the critic warms up) and one of the critic. `planned_step`: its
    place among the optimizer steps that the run would make if it skipped none."""
    metrics, signals = dict[str, Metric](), Signals()
    warming_up = run.critic is not None and step <= run.config.critic.warmup_steps
    if run.select_tokens is not None and not warming_up:
        fresh = run.policy.logprobs(minibatch).logprobs_BT
        old = fresh if minibatch.old_logprobs is None else minibatch.old_logprobs
        selection = run.select_tokens(fresh, old, minibatch.advantages, minibatch.loss_mask)  # type: ignore[arg-type]
        minibatch = minibatch.replace(selection=selection)
    with keeping_batch(Path(run.config.output), step, minibatch):
        if not warming_up:
            done = update_policy(run, minibatch, objective, planned_step=planned_step)
            metrics, signals = dict(done.metrics), done.signals
            metrics["policy/optimizer_steps"] = Metric(Reduction.SUM, 1)
        if run.critic is not None:
            if warming_up or not run.critic.shares_trunk:  # the policy's update has trained a head on its trunk
                valued = run.critic.update(minibatch, run.value_objective, planned_step=planned_step)  # type: ignore[arg-type]
                metrics.update(valued.metrics)
            metrics["critic/optimizer_steps"] = Metric(Reduction.SUM, 1)
    return Update(metrics, signals)


def update_policy(run: RlRun, minibatch: Batch, objective: Objective, *, planned_step: int) -> Update:
    """One optimizer step; `skip_zero_advantages` leaves rows out of it that change nothing."""
    if not run.config.algorithm.skip_zero_advantages:
        return run.policy.update(minibatch, objective, planned_step=planned_step)
    denominators = count_denominators(minibatch)
    has_gradient_B = (minibatch.loss_mask & (minibatch.advantages != 0)).any(dim=1)  # type: ignore[operator]
    part = minibatch.select(has_gradient_B.nonzero()[:, 0])
    done = run.policy.update(part, objective, denominators=denominators, planned_step=planned_step)
    metrics = dict(done.metrics)
    left_out = 1 - int(part.loss_mask.sum()) / max(denominators.num_tokens, 1)
    merge_into(metrics, {"policy/loss": Metric(Reduction.MEAN, 0.0, left_out)})  # their share of the loss is 0
    metrics["policy/skipped_fraction"] = Metric(Reduction.MEAN, (~has_gradient_B).sum(), len(minibatch))
    return Update(metrics, done.signals)


def steer_kl(run: RlRun, batch: Batch) -> dict[str, Metric]:
    """Log the KL of the step's responses to the reference and let the controller react to it."""
    mask = batch.loss_mask
    sampled_with = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    per_response = k1(sampled_with, batch.ref_logprobs, mask=mask).sum(dim=1)  # type: ignore[arg-type]
    per_token = k3(sampled_with, batch.ref_logprobs, mask=mask)  # type: ignore[arg-type]
    num_sequences = int(mask.any(dim=1).sum())
    used = run.kl.coef
    if num_sequences:
        run.kl.update(float(per_response.sum()) / num_sequences, num_sequences)
    target = run.config.algorithm.kl_target
    # Of the estimators k3 alone clamps: where it does, it neither grows nor has a gradient.
    clamped_BT = beyond_limit(log_ratio(sampled_with, batch.ref_logprobs, mask))  # type: ignore[arg-type]
    clamps = run.config.algorithm.kl_function == "k3"
    return {
        **({"kl/clamped_fraction": Metric(Reduction.MEAN, clamped_BT.sum(), mask.sum())} if clamps else {}),
        **({} if target is None else {"kl/target": Metric(Reduction.LAST, target)}),
        "kl/reference": Metric(Reduction.MEAN, per_response.sum(), num_sequences),
        "kl/reference_per_token": Metric(Reduction.MEAN, per_token.sum(), mask.sum()),
        "kl/coef": Metric(Reduction.LAST, used),
    }


def evaluate(run: RlRun) -> dict[str, float]:
    """Evaluate the current policy. Returns what to log with the last finished step."""
    if run.evaluator is None:
        return {}
    stopwatch = Stopwatch(run.journal.display.phase)
    with stopwatch.phase("evaluate"):
        metrics, groups = run.evaluator.evaluate()
        values: TokenValues = {}
        if run.critic is not None:
            expected, values = held_out_values(run.critic, groups, pad_token_id=run.pad_token_id)
            metrics |= expected
    # Failures while evaluating are in eval/failed_fraction, and neither they nor its tokens are the next step's.
    run.evaluator.scorer.metrics()
    run.engine.metrics()
    run.journal.record_evaluation(run.progress.step, groups, values)
    store = MetricStore()
    store.merge(metrics)
    store.add("time/evaluate_seconds", Metric(Reduction.SUM, stopwatch.seconds("evaluate")))
    return store.row()


def derive(row: dict[str, float]) -> dict[str, float]:
    """Replace the second moments that merge exactly by the spreads that people read, and add the throughputs."""
    row = derive_values(row)
    for name, moment in (("reward", "reward/square_mean"), ("advantage", "advantage/square_mean")):
        if moment in row:
            row[f"{name}/std"] = math.sqrt(variance_of(row.pop(moment), row[f"{name}/mean"]))
    if "advantage/raw_square_mean" in row:
        row["advantage/raw_std"] = math.sqrt(
            variance_of(row.pop("advantage/raw_square_mean"), row["advantage/raw_mean"])
        )
    if "rollout/weight_square_mean" in row:
        row["rollout/effective_sample_size"] = row["rollout/weight_mean"] ** 2 / row.pop("rollout/weight_square_mean")
    tokens = row["rollout/response_tokens_sum"]
    for name, phase in (("response", "step"), ("generate", "generate"), ("update", "update")):
        seconds = row.get(f"time/{phase}_seconds", 0.0)
        if seconds > 0:
            row[f"throughput/{name}_tokens_per_second"] = tokens / seconds
    return row
