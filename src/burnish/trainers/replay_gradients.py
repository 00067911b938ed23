"""Gradients of recorded steps at the weights that had them, by algorithm: which one would have learned more.

The batch is prepared as the loop prepares it before its first update, as one minibatch, and goes through the policy's
own passes; the gradient is read in place of the optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from rich.console import Console

from burnish.checkpointing.store import CheckpointStore, verify
from burnish.config.schema import RlConfig
from burnish.errors import CheckpointError, ConfigError
from burnish.forward.batch import Batch
from burnish.forward.lanes import Lanes
from burnish.forward.team import Gradients
from burnish.machine.matmul_precision import num_threads
from burnish.models.optimizers import euclidean_norm
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, Objective, count_denominators
from burnish.observability.metrics import MetricStore
from burnish.observability.recorder import recorded_files
from burnish.trainers.microbatch import settle_microbatch
from burnish.trainers.placement import threads_of
from burnish.trainers.replay import ReplayedStep, Replayer
from burnish.trainers.result import WEIGHTS_FOLDER
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.batching import epoch_rows
from burnish.trainers.rl.credit import whiten_minibatch
from burnish.trainers.rl.loop import ranked, with_gradient, with_left_out, with_selection
from burnish.trainers.rl.setup.objective import objectives
from burnish.trainers.rl.setup.opened_models import open_model
from burnish.trainers.rl.setup.roles import build_policy
from burnish.trainers.run_folder import recorded_paths

_BAR, _ROW, _NAMES, _TOP = 180, 24, 220, 30


@dataclass(frozen=True, slots=True)
class ReplayedGradient:
    """Gradient of a recorded step for one algorithm, before clipping.

    cosine: to the gradient of the run's own settings. signal_to_noise: see `signal_to_noise`. Both are None where they
    are not defined. metrics: of the policy's passes, such as `policy/loss`.
    """

    step: int
    algorithm: str
    norm: float
    cosine: float | None
    signal_to_noise: float | None
    metrics: Mapping[str, float]


@contextmanager
def open_policy(config: RlConfig, console: Console) -> Iterator[LocalPolicy]:
    """The policy of a run as it begins, alone in this process, with the threads, lanes and fast paths of the run.

    ConfigError for runs with a critic on the policy's backbone, whose gradient is not the policy's alone, and for runs
    whose loss is the divergence from a teacher over the vocabulary.
    """
    needs_values = resolve_algorithm(config.algorithm).estimator.needs_values
    if needs_values and config.critic.kind == "shared":
        raise ConfigError(
            f"{config.output} has a critic on the policy's backbone, whose part of the gradient was not recorded",
            remedy="replay without --gradients",
        )
    if config.compares_vocabulary:
        raise ConfigError(
            f"{config.output} has teacher.compare: vocabulary: its loss reads the teacher's whole distributions, which "
            "no file could hold, so none were recorded",
            remedy="replay without --gradients",
        )
    paths = recorded_paths(Path(config.output))
    with num_threads(threads_of(config)), open_model(config, paths, console) as loaded:
        yield build_policy(settle_microbatch(config, paths, loaded), loaded, Lanes(config.cluster.num_lanes))


def steps_with_weights(run: Path) -> list[int]:
    """Recorded steps that began with weights which are at hand."""
    saved = CheckpointStore(run).steps()
    return [step for step in recorded_files(run / "rollouts") if step == 1 or step - 1 in saved]


def load_weights_before(policy: LocalPolicy, run: Path, step: int) -> None:
    """Load the weights that a step began with, which the checkpoint of the step before has. A policy is opened with the
    first step's. CheckpointError, with the nearest step that can be replayed, if there are none."""
    if step == 1:
        return
    folder = CheckpointStore(run).at(step - 1).folder
    if (problem := verify(folder, step - 1)) is not None:
        others = [other for other in steps_with_weights(run) if other != step] or [1]
        nearest = min(others, key=lambda other: abs(other - step))
        raise CheckpointError(
            f"step {step} began with the weights after step {step - 1}, which are not there: {problem}",
            remedy=f"the nearest step with weights is {nearest} (--step {nearest}); checkpoint.keep keeps more",
        )
    policy.load_weights(folder / WEIGHTS_FOLDER)


def replay_gradients(file: Path, policy: LocalPolicy, replayers: Mapping[str, Replayer]) -> list[ReplayedGradient]:
    """The gradient of a recorded step for each algorithm by its name, the run's own first. The policy must have the
    weights that the step began with, and keeps them.

    Raises like `Replayer.credited`, and ConfigError for an algorithm that needs what was not recorded.
    """
    found: list[ReplayedGradient] = []
    own: Gradients | None = None
    for name, replayer in replayers.items():
        algorithm, recorded = replayer.config.algorithm, replayer.read(file)
        minibatch = _minibatch(name, replayer, recorded, policy)
        coef = replayer.kl_coefs.get(recorded.step, algorithm.kl_coef)
        objective = objectives(replayer.config, resolve_algorithm(algorithm))(coef)
        denominators = count_denominators(minibatch)
        part = with_gradient(minibatch) if algorithm.skip_zero_advantages else minibatch
        policy.accumulate(part, objective, denominators)
        gradient, metrics = policy.take_gradient()
        own = own or gradient
        metrics = metrics if part is minibatch else with_left_out(metrics, part, minibatch)
        norm, squares = _norm(gradient), _group_squares(policy, minibatch, objective, denominators)
        ratio = signal_to_noise(norm**2, squares)
        row = {key: value for key, value in MetricStore.of([metrics]).row().items() if key.startswith("policy/")}
        found.append(ReplayedGradient(recorded.step, name, norm, _cosine(gradient, own), ratio, row))
    return found


def signal_to_noise(total_square: float, group_squares: Sequence[float]) -> float | None:
    """Estimate the squared length of the expected gradient over the variance of the step's gradient.

    total_square: squared norm of the step's gradient, the sum of the gradients of G groups, whose squared norms are
    `group_squares`. If the groups are cut into two halves, the inner product of the halves' mean gradients is an
    unbiased estimate of the squared expected one; this is its mean over all ways to cut them, in closed form. None for
    fewer than two groups, or groups that all agree. An estimate below 0 is noise alone.
    """
    count, alone = len(group_squares), sum(group_squares)
    noise = count * alone - total_square
    return count * (total_square - alone) / noise if count > 1 and noise > 1e-6 * count * alone else None


def _minibatch(name: str, replayer: Replayer, recorded: ReplayedStep, policy: LocalPolicy) -> Batch:
    """The step as one minibatch, with its rows in the order of the loop."""
    config, (estimator, loss, numbers) = replayer.config, resolve_algorithm(replayer.config.algorithm)
    credited = replayer.credited(recorded)
    batch, why = credited.batch, ", ".join(sorted({why for why in credited.why_left_out.values() if why}))
    if batch is None or not bool(batch.loss_mask.any()):
        raise ConfigError(
            f"{name}: no response of step {recorded.step} is trained on{why and f' ({why})'}",
            remedy="choose another step, or a run that recorded what this algorithm needs",
        )
    if config.algorithm.kl_in == "loss" and batch.ref_logprobs is None:
        raise ConfigError(
            f"{name}: algorithm.kl_in is loss and needs ref_logprobs, which step {recorded.step} did not record",
            remedy="compare without the KL: algorithm.kl_in=none",
        )
    if config.old_logprobs_of_sampler:
        batch = batch.replace(old_logprobs=batch.rollout_logprobs)
    elif batch.old_logprobs is not None:
        batch = batch.replace(old_logprobs=policy.logprobs(batch).logprobs_BT)
    if (share := config.algorithm.top_entropy) is not None:
        batch = ranked(batch, policy.logprobs(batch, entropy=True), share)
    shuffle, seed, step = config.optimization.shuffle, config.seed, recorded.step
    (rows,) = epoch_rows(batch.group_ids, minibatches=1, shuffle=shuffle, seed=seed, step=step, epoch=0)
    minibatch = batch.select(rows)
    if config.whitens_minibatches:
        minibatch, _ = whiten_minibatch(minibatch, algorithm=config.algorithm, estimator=estimator)
    if loss.selection is not None:
        minibatch = with_selection(minibatch, policy, partial(loss.select, options=numbers))
    return minibatch


def _group_squares(policy: LocalPolicy, batch: Batch, objective: Objective, denominators: Denominators) -> list[float]:
    """Squared norm of each group's part of the gradient."""
    squares = []
    for group in batch.group_ids.unique():
        policy.accumulate(batch.select((batch.group_ids == group).nonzero()[:, 0]), objective, denominators)
        gradient, _ = policy.take_gradient()
        squares.append(_norm(gradient) ** 2)
    return squares


def _norm(gradient: Gradients) -> float:
    return float(euclidean_norm([tensor for tensor in gradient if tensor is not None]))


def _cosine(first: Gradients, second: Gradients) -> float | None:
    pairs = [(one, other) for one, other in zip(first, second, strict=True) if one is not None and other is not None]
    inner = sum(float((one.double() * other.double()).sum()) for one, other in pairs)
    norms = _norm(first) * _norm(second)
    return inner / norms if norms else None


def picture(rows: Sequence[ReplayedGradient]) -> str:
    """Bars for norm, cosine and signal-to-noise of each algorithm, as an SVG."""
    width, height = _NAMES + 3 * (_BAR + 90), _TOP + len(rows) * _ROW + 8
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    lines.append(f'<rect width="{width}" height="{height}" fill="#fff"/><g font-size="12" fill="#16191d">')
    lines += [_text(8, index, f"step {row.step}, {row.algorithm}"[:34]) for index, row in enumerate(rows)]
    for place, column in enumerate(("norm", "cosine", "signal_to_noise")):
        x, values = _NAMES + place * (_BAR + 90), [getattr(row, column) for row in rows]
        lines.append(_text(x, -1, column.replace("_", "-")))
        longest = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
        for index, value in enumerate(values):
            long, colour = _BAR * abs(value or 0.0) / longest, "#b3661a" if (value or 0.0) < 0 else "#2463c9"
            box = f'x="{x}" y="{_TOP + index * _ROW}" width="{long:.1f}" height="{_ROW - 8}"'
            lines.append(f'<rect {box} fill="{colour}"/>')
            lines.append(_text(x + long + 5, index, "–" if value is None else f"{value:.3g}"))
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def _text(x: float, row: int, words: str) -> str:
    return f'<text x="{x:.1f}" y="{_TOP + row * _ROW + 12}">{escape(words)}</text>'
