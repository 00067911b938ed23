"""Sampling ahead of training: which weights sample what follows from the run file alone."""

from pathlib import Path
from typing import Any

import pytest
from runs import BuildRl, Run, ctrl_c_in_step, lines_of, rows_of, step_rows, trace, trained

from burnish.errors import RolloutError
from burnish.trainers.rl.collection import Collector

pytestmark = pytest.mark.slow

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"preset": "grpo", "kl_in": "loss", "kl_coef": 0.05}},
    "dapo": {"algorithm": {"preset": "dapo", "max_refills": 2}},
    "decoupled": {"algorithm": {"preset": "grpo", "mismatch_correction": "token_truncate"}},
    "ppo": {"algorithm": {"preset": "ppo", "kl_in": "reward", "kl_coef": 0.05}, "critic": {"kind": "separate"}},
}


@pytest.fixture
def run(tiny_run: BuildRl, tmp_path: Path) -> Run:
    """Trains in `tmp_path/NAME`, with evaluations in between, and returns the folder."""

    def train(name: str, case: str, staleness: int, *, minibatches: int = 2, **cluster: int) -> Path:
        config = tiny_run(
            f"output={tmp_path}/{name}",
            steps=5,
            max_staleness=staleness,
            optimization={"minibatches": minibatches, "learning_rate": 1e-3},
            evaluation={"every_steps": 2},
            checkpoint={"every_steps": 2},
            cluster={"lanes": 2, "threads": 1, **cluster},
            **ALGORITHMS[case],
        )
        return trained(config)

    return train


def versions(folder: Path) -> list[set[int]]:
    """The versions of the weights that sampled each step."""
    files = sorted((folder / "rollouts").glob("step-*.jsonl"))
    return [{line["policy_version"] for line in lines_of(file)} for file in files]


@pytest.mark.parametrize(("staleness", "expected"), [(0, [0, 2, 4, 6, 8]), (1, [0, 0, 2, 4, 6]), (3, [0, 0, 0, 0, 2])])
def test_the_weights_that_sample_a_step_are_those_of_the_rule(staleness: int, expected: list[int], run: Run) -> None:
    """Two optimizer steps a step, so the weights after step n have version 2 n."""
    folder = run("one", "grpo", staleness)
    assert versions(folder) == [{version} for version in expected]
    rows = step_rows(folder)
    if staleness:
        assert [row["rollout/staleness"] for row in rows] == [min(staleness, step) for step in range(5)]
    else:
        assert not any("rollout/staleness" in row for row in rows)


@pytest.mark.parametrize("case", ["grpo", "dapo"])
def test_a_run_that_samples_ahead_goes_on_with_the_batches_of_its_checkpoint(
    case: str, run: Run, tmp_path: Path
) -> None:
    """Ctrl-C in step 3 ends the run after it."""
    expected = trace(run("whole", case, 2))
    with ctrl_c_in_step(3):
        run("halves", case, 2)
    assert len(rows_of(tmp_path / "halves")) == 4
    assert trace(run("halves", case, 2)) == expected


def test_sampling_aside_has_the_numbers_of_sampling_inline(run: Run) -> None:
    expected = trace(run("inline", "grpo", 1))
    assert trace(run("aside", "grpo", 1, rollout_workers=1)) == expected


@pytest.mark.matrix_cases("[gd]*", "ppo-[01]")
@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("case", ALGORITHMS)
def test_no_number_of_processes_changes_a_bit(staleness: int, case: str, run: Run) -> None:
    expected = trace(run("inline", case, staleness))
    assert trace(run("workers", case, staleness, rollout_workers=2)) == expected
    assert trace(run("trainers", case, staleness, trainers=2)) == expected


def test_the_ratio_of_a_stale_response_is_to_its_sampler(run: Run) -> None:
    """The first step trains on fresh responses, the third on those of the weights before the second. The ratio shows
    how far the policy has moved since; weighted by a correction instead, it begins at 1."""
    stale = rows_of(run("sampler", "grpo", 1, minibatches=1))
    assert stale[3]["policy/approx_kl"] > 1e-4 > 1e-6 > abs(stale[1]["policy/approx_kl"])
    assert stale[3]["rollout/logprob_diff_mean"] > 1e-3 > 1e-5 > stale[1]["rollout/logprob_diff_mean"]
    weighted = rows_of(run("decoupled", "decoupled", 1, minibatches=2))
    assert "policy/first_ratio_deviation" not in stale[3]
    assert weighted[3]["policy/first_ratio_deviation"] < 1e-4
    assert weighted[3]["rollout/logprob_diff_mean"] > 1e-3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_ahead_of_training_ends_the_step_that_needs_the_batch(
    workers: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 4 cannot be sampled. The steps before it are trained, and the run goes on from the third."""
    collect = Collector.collect

    def failing(collector: Collector, step: int, *rest: Any) -> Any:
        if step == 4:
            raise RolloutError("the lights went out", remedy="turn them on")
        return collect(collector, step, *rest)

    monkeypatch.setattr(Collector, "collect", failing)
    with pytest.raises(RolloutError, match="the lights went out"):
        run("dark", "grpo", 1, rollout_workers=workers)
    monkeypatch.undo()
    assert [row["step"] for row in rows_of(run("dark", "grpo", 1, rollout_workers=workers))] == [0, 1, 2, 3, 4, 5]
