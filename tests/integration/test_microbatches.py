"""How a minibatch is cut, padded and ordered changes no gradient: real rollouts, real policy, whole update path."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from batches import joined
from real_steps import sampled_step, with_algorithm
from runs import BuildRl, trained, untimed_rows
from torch import Tensor

from burnish.algorithms.aggregation import AGGREGATIONS
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.config.schema import AlgorithmConfig, RunConfig
from burnish.forward.batch import Batch, TokenScores, present
from burnish.forward.microbatches import microbatches_by_groups
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, Objective, ObjectiveValue
from burnish.observability.metrics import MetricStore
from burnish.trainers import microbatch
from burnish.trainers.rl.batching import build_batch, build_rewards, scored, with_parts
from burnish.trainers.rl.collection import Collected
from burnish.trainers.rl.credit import assign_advantages
from burnish.trainers.rl.loop import RlRun
from burnish.types import Rollout, RolloutGroup

Sampled = tuple[RlRun, Collected]
CUTS = (1, 2, 7)
WHOLE = 1_000_000
TOLERANCE = 1e-6
LOSS_TOLERANCE = 4e-6  # a loss that sums over a response is a difference of several float32 log-probabilities
"""Of the largest component of the gradient."""


@pytest.fixture(scope="module")
def sampled(tiny_model: Path, tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampled]:
    """A run with a reference and the rollouts of one step: 16 responses of several lengths."""
    rollout = {"prompts_per_step": 2, "group_size": 8, "max_prompt_tokens": 8, "max_response_tokens": 16}
    with sampled_step(tiny_model, tiny_task, tmp_path_factory.mktemp("cuts") / "run", rollout=rollout) as step:
        yield step


class GradientCatcher:
    """Stands in for the optimizer: keeps the gradient of the step and moves no weight."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self.caught: list[Tensor] = []

    def clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def grad_norm(self) -> Tensor:
        return torch.stack([p.grad.norm() for p in self._parameters if p.grad is not None]).norm()

    def step(self, step: int, grad_norm: Tensor) -> float:
        self.caught = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self._parameters]
        self.clear()
        return 0.0


@dataclasses.dataclass
class Counted:
    """An objective that counts the micro-batches it is asked about."""

    inner: Objective
    calls: int = 0

    @property
    def needs_entropy(self) -> bool:
        return self.inner.needs_entropy

    def __call__(self, scores: TokenScores, batch: Batch, denominators: Denominators) -> ObjectiveValue:
        self.calls += 1
        return self.inner(scores, batch, denominators)


@dataclasses.dataclass(frozen=True)
class Step:
    """What one optimizer step came to."""

    gradient: Tensor
    metrics: dict[str, float]
    microbatches: int


def ready_batch(run: RlRun, collected: Collected) -> Batch:
    """The step's batch with advantages, and old and reference log-probabilities somewhat off the current ones."""
    rows = divisible(scored(collected.groups))
    batch = build_batch([r for _, r in rows], pad_token_id=run.pad_token_id, mask_truncated=False)
    logprobs = run.policy.logprobs(batch).logprobs_BT
    noise = torch.randn(2, *logprobs.shape, generator=torch.Generator().manual_seed(3))
    batch = batch.replace(
        old_logprobs=logprobs + 0.2 * noise[0],
        ref_logprobs=logprobs + 0.3 * noise[1],
        turn_index=torch.where(batch.loss_mask, (torch.arange(logprobs.shape[1]) > 0).long(), -1),  # two turns
    )
    outcome = with_parts(build_rewards(rows), rows, run.config.reward_weights)
    settings = run.config.algorithm
    return assign_advantages(batch, outcome, algorithm=settings, estimator=run.estimator, kl_coef=run.kl.coef)[0]


def one_step(run: RlRun, batch: Batch, budget: int) -> Step:
    """The real update path with a micro-batch budget; only the optimizer at its end is replaced."""
    policy = run.policy
    assert isinstance(policy, LocalPolicy)
    catcher, counted = GradientCatcher(policy.model), Counted(run.objective(run.kl.coef))
    metrics = MetricStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy._optimizers[0], "weights", catcher)
        patch.setattr(policy, "_tokens_per_microbatch", budget)
        dataclasses.replace(run, objective=lambda coef: counted).update(batch, 1, metrics)
    return Step(torch.cat([g.flatten() for g in catcher.caught]), metrics.row(), counted.calls)


def budgets(batch: Batch) -> dict[int, int]:
    """Number of micro-batches to a token budget that cuts the rows into so many, each prompt read once."""
    whole, groups = batch.num_tokens, batch.host.groups()
    prompts, lengths = batch.prompt_lengths.tolist(), batch.response_lengths.tolist()
    return {len(microbatches_by_groups(prompts, lengths, groups, budget)): budget for budget in range(1, whole + 1)}


def budget_for(batch: Batch, count: int) -> int:
    return budgets(batch)[count]


def divisible(rows: list[tuple[RolloutGroup, Rollout]]) -> list[tuple[RolloutGroup, Rollout]]:
    """As many of the rows, in an order that mixes the groups, as can be cut into 1, 2 and 7 micro-batches."""
    rows = rows[::2] + rows[1::2]

    def cuts(count: int) -> set[int]:
        first = [rollout for _, rollout in rows[:count]]
        return set(budgets(build_batch(first, pad_token_id=0, mask_truncated=False)))

    return rows[: next(n for n in range(len(rows), 0, -1) if set(CUTS) <= cuts(n))]


def assert_same(step: Step, other: Step) -> None:
    assert bool(step.gradient.isfinite().all())
    largest = float(step.gradient.abs().max())
    assert largest > 0
    assert float((step.gradient - other.gradient).abs().max()) <= TOLERANCE * largest
    assert step.metrics.keys() == other.metrics.keys()
    for name, value in step.metrics.items():
        close = LOSS_TOLERANCE if name == "policy/loss" else TOLERANCE
        assert math.isclose(value, other.metrics[name], rel_tol=1e-5, abs_tol=close), name


def algorithms(loss: str) -> Iterator[AlgorithmConfig]:
    """Every aggregation, with and without the KL in the loss and the entropy bonus."""
    for aggregation, (kl_coef, entropy_coef) in product(AGGREGATIONS, ((0.0, 0.0), (0.3, 0.1))):
        kl = {"kl_in": "loss" if kl_coef else "none", "kl_coef": kl_coef}
        yield AlgorithmConfig(loss=loss, aggregation=aggregation, entropy_coef=entropy_coef, **kl)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_gradients_do_not_depend_on_the_cut(sampled: Sampled, loss: str) -> None:
    for algorithm in algorithms(loss):
        run = with_algorithm(sampled[0], algorithm)
        batch = ready_batch(run, sampled[1])
        steps = [one_step(run, batch, budget_for(batch, count)) for count in CUTS]
        assert tuple(step.microbatches for step in steps) == CUTS
        for step, other in pairwise(steps):
            assert_same(step, other)


@pytest.mark.slow_cases("sapo", "cispo", "dppo", "gmpo", "topr", "tis", "reinforce")
@pytest.mark.parametrize("loss", [name for name, row in POLICY_LOSSES.items() if row.zero_at_zero_advantage])
def test_rows_without_an_advantage_change_no_gradient(sampled: Sampled, loss: str) -> None:
    """Whatever the ratio: the old log-probabilities are others than the present ones."""
    for aggregation in AGGREGATIONS:
        run = with_algorithm(sampled[0], AlgorithmConfig(loss=loss, aggregation=aggregation))
        batch = ready_batch(run, sampled[1])
        assert batch.advantages is not None
        advantages = batch.advantages.clone()
        advantages[::3] = 0.0
        batch = batch.replace(advantages=advantages, old_logprobs=run.policy.logprobs(batch).logprobs_BT + 0.1)
        whole = one_step(run, batch, WHOLE)
        skipping = run.config.algorithm.model_copy(update={"skip_zero_advantages": True})
        part = one_step(with_algorithm(run, skipping), batch, WHOLE)
        largest = float(whole.gradient.abs().max())
        assert largest > 0
        torch.testing.assert_close(part.gradient, whole.gradient, rtol=0, atol=TOLERANCE * largest)
        assert part.metrics["policy/loss"] == pytest.approx(whole.metrics["policy/loss"], abs=LOSS_TOLERANCE)
        assert part.metrics["policy/skipped_fraction"] == pytest.approx(-(-len(batch) // 3) / len(batch))


@pytest.mark.parametrize(
    "correction",
    [
        *("token_truncate", "token_mask", "turn_truncate", "turn_mask", "sequence_truncate", "sequence_mask"),
        *("sequence_mask_mean", "sequence_mask_max"),
    ],
)
def test_mismatch_corrections_do_not_depend_on_the_cut(sampled: Sampled, correction: str) -> None:
    algorithm = AlgorithmConfig(mismatch_correction=correction, mismatch_low=0.8, mismatch_high=1.2)  # type: ignore[arg-type]
    run = with_algorithm(sampled[0], algorithm)
    batch = ready_batch(run, sampled[1])
    whole = one_step(run, batch, WHOLE)
    assert_same(whole, one_step(run, batch, budget_for(batch, 7)))
    uncorrected = one_step(with_algorithm(run, AlgorithmConfig()), batch, WHOLE)
    assert not torch.equal(whole.gradient, uncorrected.gradient)


def test_tokens_of_highest_entropy_are_the_steps_however_it_is_cut(sampled: Sampled) -> None:
    """Half of all tokens, not half of each micro-batch; the others have no gradient, and count in the mean."""
    run = with_algorithm(sampled[0], AlgorithmConfig(top_entropy=0.5))
    policy, batch = run.policy, ready_batch(run, sampled[1])
    assert isinstance(policy, LocalPolicy)
    scored_by = {WHOLE: run.add_logprobs(batch, [])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "_tokens_per_microbatch", budget_for(batch, 7))
        scored_by[7] = run.add_logprobs(batch, [])
    chosen = present(scored_by[WHOLE].weights, "weights")
    assert torch.equal(chosen, present(scored_by[7].weights, "weights"))
    assert int(chosen.sum()) == int(batch.loss_mask.sum()) // 2
    assert_same(one_step(run, scored_by[WHOLE], WHOLE), one_step(run, scored_by[7], budget_for(batch, 7)))
    masked = batch.replace(advantages=present(batch.advantages, "advantages") * chosen)
    expected = one_step(run, masked, WHOLE).gradient
    torch.testing.assert_close(one_step(run, scored_by[WHOLE], WHOLE).gradient, expected, rtol=0, atol=1e-6)


def padded(batch: Batch, columns: int) -> Batch:
    """Wider by so many columns of garbage: tokens of the vocabulary, NaN in the numbers, masked."""
    widened = {
        name: torch.nn.functional.pad(value, (0, columns), value=math.nan if value.is_floating_point() else 5)
        for name, value in vars_of(batch)
        if value.dim() == 2 and name != "loss_mask"
    }
    return dataclasses.replace(batch, **widened, loss_mask=torch.nn.functional.pad(batch.loss_mask, (0, columns)))


def vars_of(batch: Batch) -> list[tuple[str, Tensor]]:
    fields = ((f.name, getattr(batch, f.name)) for f in dataclasses.fields(batch))
    return [(name, value) for name, value in fields if value is not None]


def shuffled(batch: Batch) -> Batch:
    return batch.select(torch.randperm(len(batch), generator=torch.Generator().manual_seed(5)))


def masked_rows_added(batch: Batch) -> Batch:
    """With rows at the end that are not trained on at all."""
    extra = batch.select([0, 3])
    extra = extra.replace(loss_mask=torch.zeros_like(extra.loss_mask))
    return joined([batch, extra])


@pytest.mark.slow
@pytest.mark.parametrize("change", [partial(padded, columns=9), shuffled, masked_rows_added])
@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "clip_cov", "reinforce"])
def test_padding_order_and_masked_rows_change_no_gradient(
    sampled: Sampled, loss: str, change: Callable[[Batch], Batch]
) -> None:
    for algorithm in algorithms(loss):
        run = with_algorithm(sampled[0], algorithm)
        batch = ready_batch(run, sampled[1])
        changed = change(batch)
        for budget in (WHOLE, budget_for(batch, 7)):
            assert_same(one_step(run, batch, WHOLE), one_step(run, changed, budget))


def curves_agree(build: Callable[..., RunConfig], folder: Path) -> None:
    rows, *cut = (
        untimed_rows(trained(build(f"output={folder}/{budget}", f"optimization.tokens_per_microbatch={budget}")))
        for budget in (WHOLE, 70, 20)
    )
    assert rows
    for others in cut:
        for row, other in zip(rows, others, strict=True):
            assert row.keys() == other.keys()
            for name, value in row.items():
                if not name.startswith("rollout/logprob_"):  # these are rounding itself
                    assert math.isclose(value, other[name], rel_tol=1e-3, abs_tol=1e-5), name


@pytest.mark.slow
def test_the_curves_of_a_run_do_not_depend_on_the_cut(tiny_run: BuildRl, tmp_path: Path) -> None:
    optimization = {"learning_rate": 1e-3, "epochs": 2, "minibatches": 2}
    curves_agree(partial(tiny_run, optimization=optimization), tmp_path)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_tokens_that_auto_found(
    tiny_run: BuildRl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has room for less when the run goes on changes no bit: the run's folder has the number."""
    auto = ("optimization.tokens_per_microbatch=auto", "checkpoint.every_steps=1", "cluster.threads=1")

    def go_on(name: str, steps: int, room: int) -> Path:
        monkeypatch.setattr(microbatch, "_tokens", lambda config, loaded: room)
        return trained(tiny_run(*auto, f"output={tmp_path / name}", steps=steps))

    whole, cut = go_on("whole", 4, 48), go_on("cut", 2, 48)
    go_on("cut", 4, 16)
    assert json.loads((cut / "paths.json").read_text()) == json.loads((whole / "paths.json").read_text())
    assert untimed_rows(cut) == untimed_rows(whole)
    weights = "checkpoints/step-000004/policy/model.safetensors"
    assert (cut / weights).read_bytes() == (whole / weights).read_bytes()
