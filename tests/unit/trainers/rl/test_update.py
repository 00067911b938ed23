"""The optimizer steps of a training step, on a policy that only remembers what it was asked."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_samples import ones_batch

from burnish.algorithms.advantages import ESTIMATORS, resolve_estimator
from burnish.algorithms.kl import KLController
from burnish.config.schema import RlConfig
from burnish.forward.batch import Batch, TokenScores
from burnish.models.roles import Signals, Update
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.batching import epoch_rows
from burnish.trainers.rl.loop import RlRun, steer_kl
from burnish.trainers.rl.setup.roles import ALONE
from burnish.types import Metric, Reduction


class Policy:
    """Reports ratio deviations .1, .2, .3 ... of the minibatches that have a trained token."""

    def __init__(self) -> None:
        self.seen: list[Batch] = []
        self.scored = 0
        self.planned: list[int | None] = []

    def logprobs(self, batch: Batch, **_: object) -> TokenScores:
        self.scored += 1
        return TokenScores(torch.full(batch.response_tokens.shape, -1.0))

    def update(
        self, batch: Batch, objective: object, *, denominators: object = None, planned_step: int | None = None
    ) -> Update:
        self.planned.append(planned_step)
        if not batch.loss_mask.any():
            return Update({"policy/empty_updates": Metric(Reduction.SUM, 1.0)})
        self.seen.append(batch)
        deviation, kl = Metric(Reduction.MAX, len(self.seen) / 10, 1), Metric(Reduction.MEAN, 0.5, 1)
        return Update({"policy/loss": Metric(Reduction.MEAN, 0.0, 1)}, Signals(deviation, kl))


def four_rows(trained: list[bool]) -> Batch:
    return ones_batch(torch.tensor(trained)[:, None].expand(4, 2), rollout_logprobs=torch.full((4, 2), -1.0))


def run_of(tmp_path: object = "out", *, reference: object = None, **sections: Any) -> Any:
    config = RlConfig(output=str(tmp_path), model="m", rewards="exact", **sections)
    unused: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(RlRun) if field.init)
    parts = {
        "config": config,
        "policy": Policy(),
        "reference": reference,
        "kl": SimpleNamespace(coef=0.0),
        "beside": ALONE,
        "estimator": ESTIMATORS["grpo"],
    }
    return RlRun(**unused | parts | {"objective": lambda coef: None})


TWO = {"optimization": {"minibatches": 2, "epochs": 2}}


def test_the_first_deviation_is_that_of_the_first_minibatch_with_a_trained_token() -> None:
    run = run_of(**TWO)
    order = epoch_rows(torch.arange(4), minibatches=2, shuffle="prompts", seed=run.config.seed, step=1, epoch=0)
    empty = order[0].tolist()
    metrics = MetricStore()
    run.update(four_rows([row not in empty for row in range(4)]), 1, metrics)
    row = metrics.row()
    assert row["policy/first_ratio_deviation"] == pytest.approx(0.1)
    assert row["policy/optimizer_steps"] == 4
    assert row["policy/empty_updates"] >= 1
    assert "policy/ratio_deviation" not in row


def test_each_minibatch_of_each_epoch_is_an_update() -> None:
    run = run_of(**TWO)
    run.update(four_rows([True] * 4), 1, MetricStore())
    groups = [sorted(batch.group_ids.tolist()) for batch in run.policy.seen]
    assert sorted(groups[0] + groups[1]) == sorted(groups[2] + groups[3]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("algorithm", "trained", "planned"),
    [
        ({}, [True] * 4, [8, 9, 10, 11]),  # step 3 of 2 epochs x 2 minibatches
        ({"max_epoch_kl": 0.1}, [True] * 4, [8, 9]),
        ({"preset": "dr_grpo", "skip_zero_advantages": True}, [True] * 4, [8, 9, 10, 11]),
        ({}, [False] * 4, [8, 9, 10, 11]),
    ],
    ids=["all", "an epoch skipped", "rows left out", "nothing to train on"],
)
def test_each_update_knows_its_place_in_the_plan_of_the_run(algorithm, trained, planned) -> None:
    """Learning rates follow the plan: steps that were skipped before do not hold them back."""
    run = run_of(algorithm=algorithm, **TWO)
    advantages = torch.tensor([1.0, 0.0, 0.0, 0.0])[:, None].expand(4, 2)
    run.update(four_rows(trained).replace(advantages=advantages), 3, MetricStore())
    assert run.policy.planned == planned


@pytest.mark.parametrize("over", ["step", "minibatch"])
def test_minibatches_are_whitened_by_themselves_where_asked_for(over: str) -> None:
    """Four rows of advantages 0, 1, 3, 8 in minibatches of two: each pair is -1 and 1, in both epochs."""
    algorithm = {"preset": "dr_grpo", "whiten_advantages": True, "whiten_over": over, "advantage_clip": 0.9}
    run = run_of(algorithm=algorithm, **TWO)
    run.estimator = resolve_estimator("dr_grpo")
    raw = torch.tensor([0.0, 1.0, 3.0, 8.0])[:, None].expand(4, 2)
    metrics = MetricStore()
    run.update(four_rows([True] * 4).replace(advantages=raw), 1, metrics)
    seen = [sorted(batch.advantages[:, 0].tolist()) for batch in run.policy.seen]
    row = metrics.row()
    if over == "step":  # that has been done before
        assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0.0, 1.0, 3.0, 8.0]
        assert "advantage/mean" not in row
        return
    assert torch.tensor(seen) == pytest.approx(torch.tensor([[-0.9, 0.9]] * 4))
    assert row["advantage/clipped_fraction"] == 1.0
    assert row["advantage/raw_mean"] == pytest.approx(3.0)
    assert row["advantage/mean"] == pytest.approx(0.0, abs=1e-6)


CORRECTED = {"kl_in": "loss", "kl_coef": 0.1, "mismatch_correction": "token_truncate"}


def test_fewer_rows_than_minibatches_leave_gaps_in_the_plan() -> None:
    run = run_of(optimization={"minibatches": 3, "epochs": 2})
    run.update(four_rows([True] * 4).select([0, 1]), 2, MetricStore())
    assert run.policy.planned == [6, 7, 9, 10]


@pytest.mark.parametrize(
    ("sections", "with_reference", "recomputed"),
    [
        ({}, False, False),
        (TWO, False, True),
        ({"algorithm": {"preset": "dr_grpo", "kl_in": "reward", "kl_coef": 0.1, "kl_estimator": "k1"}}, True, True),
        ({"algorithm": {"preset": "dr_grpo", "kl_in": "loss", "kl_coef": 0.1}}, True, False),
        ({"algorithm": CORRECTED, "rollout": {"top_p": 0.9}}, True, True),
    ],
    ids=["one update", "several updates", "KL in the reward", "KL in the loss", "KL and a cut-off sampler"],
)
def test_old_logprobs_are_recomputed_only_where_they_are_needed(sections, with_reference, recomputed) -> None:
    reference = SimpleNamespace(logprobs=lambda batch: torch.full(batch.response_tokens.shape, -2.0))
    run = run_of(reference=reference if with_reference else None, **sections)
    batch = run.add_logprobs(four_rows([True] * 4), [])
    assert (batch.old_logprobs is not None) is recomputed
    assert run.policy.scored == int(recomputed)
    assert (batch.ref_logprobs is not None) is with_reference


@pytest.mark.parametrize(
    ("kl_in", "estimator", "share"),
    [
        ("loss", "k3", 2 / 7),
        ("reward", "k3", 2 / 7),
        ("loss", "k2", None),
        ("loss", "k3+", None),
        ("reward", "k1", None),
    ],
)
def test_tokens_too_far_from_the_reference_for_k3_are_counted(kl_in: str, estimator: str, share: float | None) -> None:
    """d = 20.5, -21 and 19.5 in the first rows, 0 elsewhere, 30 in a slot that is not trained on."""
    algorithm = {"preset": "dr_grpo", "kl_in": kl_in, "kl_coef": 0.1, "kl_estimator": estimator}
    run = run_of(algorithm=algorithm)
    run.kl = KLController(0.1)
    d = torch.tensor([[20.5, -21.0], [19.5, 30.0], [0.0, 0.0], [0.0, 0.0]])
    batch = four_rows([True] * 4)
    mask = batch.loss_mask.clone()
    mask[1, 1] = False
    old = torch.full((4, 2), -1.0)
    metrics = steer_kl(
        batch.replace(loss_mask=mask, old_logprobs=old, ref_logprobs=old - d), run.kl, run.config.algorithm
    )
    assert ("kl/clamped_fraction" in metrics) is (share is not None)
    if share is not None:
        assert metrics["kl/clamped_fraction"].result() == pytest.approx(share)
