"""What runs log is in the table of metrics, with the reduction that the table says."""

from pathlib import Path
from typing import Any

import pytest
from runs import BuildPairs, BuildRl, BuildSft, trained_rows

from burnish.config.schema import RunConfig
from burnish.observability.metric_names import find_metric
from burnish.observability.metrics import MetricStore
from burnish.types import Metric, Reduction

pytestmark = pytest.mark.slow


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> dict[str, Reduction]:
    """Reductions of all readings that any store takes in, by name."""
    seen: dict[str, Reduction] = {}
    add = MetricStore.add

    def noting(store: MetricStore, name: str, metric: Metric) -> None:
        seen[name] = metric.reduction
        add(store, name, metric)

    monkeypatch.setattr(MetricStore, "add", noting)
    return seen


def written_metrics(config: RunConfig) -> set[str]:
    """Trains."""
    return {name for row in trained_rows(config) for name in row} - {"step"}


def unlike_the_table(found: set[str], merged: dict[str, Reduction]) -> list[str]:
    """Names that the table lacks, and those with another reduction than it says."""
    rows = {name: find_metric(name) for name in sorted(found)}
    return [name for name, row in rows.items() if row is None or merged.get(name, row.merged) != row.merged]


PPO = {"preset": "ppo", "kl_target": 2.0, "entropy_coef": 0.01, "max_epoch_kl": 1.0, "reward_clip": 2.0,
       "advantage_clip": 2.0, "whiten_rewards": True, "loss_options": {"dual_clip": 3.0}}  # fmt: skip
GRPO = {"preset": "grpo", "kl_in": "none", "kl_coef": 0, "dynamic_sampling": True, "skip_zero_advantages": True,
        "overlong_buffer": 0.5, "mismatch_correction": "token_truncate"}  # fmt: skip


@pytest.mark.parametrize(
    "algorithm", [PPO, GRPO, {"preset": "grpo", "kl_coef": 0.1, "loss": "clip_cov"}], ids=["ppo", "grpo", "cov"]
)
def test_every_metric_of_rl_is_in_the_table(
    algorithm: dict[str, Any], tiny_run: BuildRl, merged: dict[str, Reduction]
) -> None:
    config = tiny_run(algorithm=algorithm, steps=2, evaluation={"every_steps": 1, "samples": 2, "max_prompts": 4})
    found = written_metrics(config)
    assert len(found) > 50
    assert not unlike_the_table(found, merged)


def test_every_metric_of_sft_and_rm_is_in_the_table(
    tiny_sft: BuildSft, tiny_pairs: BuildPairs, tmp_path: Path, merged: dict[str, Reduction]
) -> None:
    pairs = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": "0+0", "margin": n % 2} for n in range(20)]
    words = ("steps=2", "held_out_fraction=0.3", "margins=true", "optimization.comparisons_per_batch=4")
    normalization = {"kind": "gain_bias", "trainable": True, "responses": 8, "max_response_tokens": 2}
    rm = tiny_pairs("rm", pairs, *words, normalization=normalization)
    found = written_metrics(tiny_sft(output=str(tmp_path / "sft"))) | written_metrics(rm)
    assert len(found) > 30
    assert not unlike_the_table(found, merged)
