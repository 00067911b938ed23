"""What runs log is in the table of metrics, with the reduction that the table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig, SftConfig
from burnish.observability.metric_names import find_metric
from burnish.observability.metrics import MetricStore
from burnish.trainers.cluster import train_rl
from burnish.trainers.reward_model.loop import train_reward_model
from burnish.trainers.sft import train_sft
from burnish.types import Metric, Reduction


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


def written_metrics(folder: Path) -> set[str]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {name for line in lines for name in json.loads(line)} - {"step"}


def unlike_the_table(found: set[str], merged: dict[str, Reduction]) -> list[str]:
    """Names that the table lacks, and those with another reduction than it says."""
    rows = {name: find_metric(name) for name in sorted(found)}
    lost = [name for name, row in rows.items() if row is None]
    odd = [
        f"{name}: {merged[name]}, not {row.merged}"
        for name, row in rows.items()
        if row is not None and name in merged and merged[name] != row.merged
    ]
    return lost + odd


PPO = {"preset": "ppo", "kl_target": 2.0, "entropy_coef": 0.01, "max_epoch_kl": 1.0, "reward_clip": 2.0,
       "advantage_clip": 2.0, "whiten_rewards": True, "loss_options": {"dual_clip": 3.0}}  # fmt: skip
GRPO = {"preset": "grpo", "kl_in": "none", "kl_coef": 0, "dynamic_sampling": True, "skip_zero_advantages": True,
        "overlong_buffer": 0.5, "mismatch_correction": "token_truncate"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [PPO, GRPO, {"preset": "grpo", "kl_coef": 0.1, "loss": "clip_cov"}], ids=["ppo", "grpo", "cov"]
)
def test_every_metric_of_rl_is_in_the_table(
    algorithm: dict[str, Any], tiny_run: Callable[..., RlConfig], merged: dict[str, Reduction]
) -> None:
    config = tiny_run(algorithm=algorithm, steps=2, evaluation={"every_steps": 1, "samples": 2, "max_prompts": 4})
    train_rl(config, console=Console(quiet=True))
    found = written_metrics(Path(config.output))
    assert len(found) > 50
    assert not unlike_the_table(found, merged)


@pytest.mark.slow
def test_every_metric_of_sft_and_rm_is_in_the_table(
    tiny_sft: Callable[..., SftConfig], tiny_model: Path, tmp_path: Path, merged: dict[str, Reduction]
) -> None:
    sft = tiny_sft(output=str(tmp_path / "sft"))
    train_sft(sft, console=Console(quiet=True))
    pairs = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": "0+0", "margin": n % 2} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    data = {
        "output": str(tmp_path / "rm"),
        "model": str(tiny_model),
        "data": {"train": str(tmp_path / "pairs.jsonl")},
        "held_out_fraction": 0.3,
        "max_tokens": 16,
        "steps": 2,
        "margins": True,
        "normalization": {"kind": "gain_bias", "trainable": True, "responses": 8, "max_response_tokens": 2},
        "optimization": {"comparisons_per_batch": 4},
        "logging": {"sinks": []},
    }
    train_reward_model(load_run_data(data, [], "rm").config, console=Console(quiet=True))
    found = written_metrics(tmp_path / "sft") | written_metrics(tmp_path / "rm")
    assert len(found) > 30
    assert not unlike_the_table(found, merged)
