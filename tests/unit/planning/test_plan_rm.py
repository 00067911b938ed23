"""The arithmetic of `burnish rm`."""

from __future__ import annotations

from burnish.config.loading import load_run_data
from burnish.planning.memory import estimate_memory, microbatch_tokens
from burnish.planning.model_facts import facts_of
from burnish.planning.plan import Preview
from burnish.planning.rl import plan_rl
from burnish.planning.rm import plan_rm

LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}
DATA = {"model": "m", "data": {"train": "pairs.jsonl"}}


def test_steps_are_comparisons_over_the_batch_rounded_up() -> None:
    config = load_run_data({**DATA, "optimization": {"comparisons_per_batch": 32, "epochs": 2}}, (), "rm").config
    assert plan_rm(config, Preview(100)).optimizer_steps == 7  # 200 / 32
    assert plan_rm(config).optimizer_steps is None


def test_a_fixed_number_of_steps_tells_the_passes() -> None:
    config = load_run_data({**DATA, "steps": 25}, (), "rm").config
    assert plan_rm(config, Preview(400)).passes_over_data == 2.0


def test_normalising_on_a_policy_loads_it() -> None:
    config = load_run_data({**DATA, "normalization": {"kind": "gain_bias"}}, (), "rm").config
    assert [role.role for role in plan_rm(config).models] == ["reward_model", "policy"]


def test_memory_of_a_reward_model_by_hand() -> None:
    facts = facts_of(LLAMA, num_parameters=1000)
    assert facts is not None
    config = load_run_data({**DATA, "max_tokens": 50, "optimization": {"comparisons_per_batch": 4}}, (), "rm").config
    sizes = {item.name: item.num_bytes for item in estimate_memory(config, facts)}
    assert sizes == {
        "reward model weights": 4000,
        "gradients": 4000,
        "Adam moments": 8000,
        "activations": 4 * 2 * 50 * 5 * (8 * 64 + 2 * 32 + 3 * 172) * 4,
    }
    policy = {"kind": "gain_bias", "responses": 8}
    measured = load_run_data({**DATA, "max_tokens": 50, "normalization": policy}, (), "rm").config
    sizes = {item.name: item.num_bytes for item in estimate_memory(measured, facts)}
    assert sizes["sampling policy"] == 4000
    assert sizes["key/value cache"] == 8 * 50 * 2 * 5 * (4 * 8) * 4


def test_a_comparison_is_never_cut() -> None:
    words = {**DATA, "candidates": 4, "loss": "best_of", "max_tokens": 50}
    small = load_run_data({**words, "optimization": {"tokens_per_microbatch": 10}}, (), "rm").config
    assert microbatch_tokens(small) == 4 * 50


def test_an_rl_plan_names_its_reward_models() -> None:
    config = load_run_data({**DATA, "rewards": {"name": "model:runs/rm", "weight": 0.5}}, (), "rl").config
    (role,) = [role for role in plan_rl(config).models if role.role == "reward_model"]
    assert "runs/rm" in role.because
