"""From comparisons to a reward model to a policy that it rewards; real human preferences (slow)."""

from pathlib import Path

import pytest
from rich.console import Console
from runs import BuildPairs, BuildRl, rows_of, trained_rows
from tiny_models import save_llama
from transformers import AutoTokenizer

from burnish.config.loading import load_run_data
from burnish.trainers.reward_model.loop import train_reward_model

pytestmark = pytest.mark.slow_cases("*")


def test_a_policy_learns_from_a_reward_model(tiny_pairs: BuildPairs, tiny_run: BuildRl) -> None:
    """The better response begins with 7; the policy, rewarded by the model alone, comes to write more of them."""
    pairs = [
        {"prompt": f"{a}+{b}=", "chosen": f"7{a}", "rejected": f"{d}{b}"}
        for a in range(10)
        for b in range(10)
        for d in (a, b)
        if d != 7
    ]
    optimization = {"learning_rate": 1e-2, "comparisons_per_batch": 16}
    normalization = {"kind": "gain_bias", "responses": 32, "max_response_tokens": 4}
    rm = tiny_pairs("rm", pairs, held_out_fraction=0.2, optimization=optimization, normalization=normalization)
    learned = train_reward_model(rm, console=Console(quiet=True))
    assert rows_of(learned.folder)[-1]["eval/accuracy"] > 0.9
    reward = {"name": f"model:{learned.weights}", "label": "learned", "options": {"device": "cpu"}}
    config = tiny_run("steps=25", "rollout.prompts_per_step=8", "optimization.learning_rate=1e-2", rewards=[reward])
    rewards = [row["reward/mean"] for row in trained_rows(config)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.5


def test_human_preferences_are_told_apart_better_than_by_chance(shared_dir: Path, tmp_path: Path) -> None:
    """2,308 real pairs, split by conversation, a transformer of one layer from scratch, one pass."""
    tokenizer = AutoTokenizer.from_pretrained(shared_dir / "models/minimind_tokenizer")
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64, "context_length": 512}
    save_llama(tmp_path / "model", tokenizer, **sizes)
    preferences = shared_dir / "data/hh_rlhf/harmless-base_test.jsonl.gz"
    data = {
        "output": str(tmp_path / "rm"),
        "model": {"path": str(tmp_path / "model"), "device": "cpu"},
        "data": {"train": str(preferences), "over_long": "truncate", "chat": "never"},
        "held_out_fraction": 0.25,
        "max_tokens": 96,
        "bad_rows": "drop",
        "optimization": {"learning_rate": 3e-3, "tokens_per_microbatch": 8192},
        "evaluation": {"every_steps": None},
        "logging": {"sinks": []},
    }
    last = trained_rows(load_run_data(data, (), "rm").config)[-1]
    assert last["eval/comparisons"] > 400
    assert last["eval/accuracy_low"] > 0.52
