"""PPO learns what the critic-free algorithms learn: two-digit additions after a demonstrator who forgets to carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from burnish.cli.demo import prepare
from burnish.config.loading import load_run_file
from burnish.demo import DemoFolder
from burnish.trainers.cluster import train_rl
from burnish.trainers.sft import train_sft

QUIET = Console(quiet=True)
STEPS = 30
PPO = (
    "algorithm.preset=ppo",
    f"steps={STEPS}",
    "rollout.prompts_per_step=1024",
    "rollout.group_size=1",
    "optimization.epochs=1",
    f"evaluation.every_steps={STEPS}",
    "logging.sinks=[]",
    "logging.record_rollouts=false",
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoFolder:
    """The demo's folder after its supervised half, which leaves a good third of the answers wrong."""
    folder = DemoFolder(tmp_path_factory.mktemp("ppo") / "demo")
    prepare(folder, 0, QUIET)
    train_sft(load_run_file(folder.sft_file, (), "sft").config, console=QUIET)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "learning_rate"), [("separate", 1e-3), pytest.param("shared", 3e-3, marks=pytest.mark.matrix)]
)
def test_ppo_reaches_critic_free_accuracy(demo: DemoFolder, tmp_path: Path, kind: str, learning_rate: float) -> None:
    """The bound is what GRPO reaches with as many responses (30 steps of 64 x 16). The policy soon gets nine of ten
    right, and then a critic trained to its end explains 0.03 of the returns: that its mean is right is all that is
    asked of it here. A head on a shared trunk is one row of numbers and needs the higher rate to get that far from 0.
    """
    words = (*PPO, f"output={tmp_path}/run", f"critic.kind={kind}", f"critic.learning_rate={learning_rate}")
    train_rl(load_run_file(demo.rl_file, words, "rl").config, console=QUIET)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    before, after = rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"]
    assert before < 0.7
    assert after > 0.93
    assert abs(rows[-1]["critic/value_mean"] - rows[-1]["critic/return_mean"]) < 0.2


@pytest.mark.slow
def test_the_critic_explains_a_policy_that_sits_still(demo: DemoFolder, tmp_path: Path) -> None:
    """Whether there is a carry to forget can be read off the prompt: 0.6 of the returns of the untrained policy can be
    explained, and the critic does so before the policy is let go."""
    own = ("steps=9", "optimization.epochs=4", "critic.warmup_steps=8", "critic.learning_rate=1e-3")
    fields = {word.partition("=")[0] for word in own}
    shared = [word for word in PPO if word.partition("=")[0] not in fields]
    words = (*shared, *own, f"output={tmp_path}/run")
    train_rl(load_run_file(demo.rl_file, words, "rl").config, console=QUIET)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["critic/explained_variance"] < 0.1
    assert rows[-1]["critic/explained_variance"] > 0.5
    assert rows[0]["eval/value_mean"] == 0
