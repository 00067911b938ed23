"""The arithmetic of a run, by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from burnish.config.loading import kind_of_data, load_run_data
from burnish.config.schema import RlConfig, RmConfig, RunConfig
from burnish.planning.comparisons import plan_rm
from burnish.planning.memory import bytes_in_words, estimate_memory, table_of
from burnish.planning.model_facts import ModelFacts, count_parameters, facts_of, read_model_facts
from burnish.planning.plan import Preview
from burnish.planning.rl import num_evaluations, plan_rl, split_evenly
from burnish.planning.texts import plan_sft

LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def rl(**sections: Any) -> RlConfig:
    return load_run_data({"model": "m", "data": {"train": "a"}, "rewards": "math", **sections}).config


def rm(**sections: Any) -> RmConfig:
    return load_run_data({"model": "m", "data": {"train": "pairs.jsonl"}, **sections}, (), "rm").config


def llama(num_parameters: int | None = None, **fields: int) -> ModelFacts:
    facts = facts_of({**LLAMA, **fields}, num_parameters=num_parameters)
    assert facts is not None
    return facts


def sizes_of(config: RunConfig, facts: ModelFacts) -> dict[str, int]:
    return {item.name: item.num_bytes for item in estimate_memory(config, facts)}


def test_prompts_become_rollouts_minibatches_and_optimizer_steps() -> None:
    of_step = {"rollout": {"prompts_per_step": 4, "group_size": 3}, "optimization": {"minibatches": 5, "epochs": 2}}
    plan = plan_rl(rl(steps=10, **of_step), Preview(20))
    assert plan.optimizer_steps == 100
    assert plan.passes_over_data == 2.0


def test_remax_adds_a_greedy_response_for_each_prompt() -> None:
    plan = plan_rl(rl(algorithm="remax", steps=2, rollout={"prompts_per_step": 4}))
    assert ("greedy responses", "4") in [(line.name, line.value) for line in plan.lines]
    assert plan.passes_over_data is None


@pytest.mark.parametrize(
    ("kind", "sections", "roles"),
    [
        ("rl", {"algorithm": "dapo"}, "policy"),
        ("rl", {"algorithm": "grpo"}, "policy, reference"),
        ("rl", {"algorithm": "ppo"}, "policy, critic, reference"),
        ("rl", {"algorithm": "dapo", "rewards": "model:runs/rm"}, "reward_model, policy"),
        ("rm", {}, "reward_model"),
        ("rm", {"normalization": {"kind": "gain_bias"}}, "reward_model, policy"),
    ],
)
def test_models_are_loaded_only_for_what_needs_them(kind: str, sections: dict[str, Any], roles: str) -> None:
    plan = plan_rl(rl(**sections)) if kind == "rl" else plan_rm(rm(**sections))
    assert ", ".join(model.role for model in plan.models) == roles


def test_vllm_samples_from_a_copy_elsewhere() -> None:
    (policy,) = plan_rl(rl(algorithm="dapo")).models
    assert policy.because == "is trained; the local engine samples from it"
    (policy,) = plan_rl(rl(algorithm="dapo", rollout={"engine": "vllm", "vllm": {"python": "x/python"}})).models
    assert policy.because == "is trained; the vllm engine samples from a second copy, in its own process (x/python)"


@pytest.mark.parametrize(
    ("steps", "every", "at_start", "expected"),
    [
        (10, 5, True, 3),
        (10, 5, None, 3),
        (10, 4, False, 3),
        (3, None, True, 1),
        (3, None, None, 0),
        (3, None, False, 0),
    ],
)
def test_evaluations_are_counted(steps: int, every: int | None, at_start: bool | None, expected: int) -> None:
    config = rl(steps=steps, data={"train": "a", "eval": "b"}, evaluation={"every_steps": every, "at_start": at_start})
    assert num_evaluations(config) == expected


def test_small_sums() -> None:
    assert num_evaluations(rl()) == 0  # without held-out data
    assert [bytes_in_words(n) for n in (12, 2048, 3 * 2**20, 5 * 2**30)] == ["12 B", "2.0 KiB", "3.0 MiB", "5.00 GiB"]
    assert split_evenly(10, 4) == (3, 3, 2, 2)
    assert split_evenly(8, 2) == (4, 4)


def test_parameters_of_a_llama_are_counted() -> None:
    facts = llama()
    # embeddings 512*64; a layer: q, o 64*64 each, k, v 64*32 each, three of 64*172, two norms; a last norm
    assert facts.num_parameters == 512 * 64 + 5 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172 + 2 * 64) + 64
    assert (facts.head_size, facts.context_tokens) == (8, 512)


def test_parameters_are_counted_exactly_from_the_weights(stories_model: Path) -> None:
    facts = read_model_facts(stories_model)
    assert facts is not None
    assert facts.num_parameters == 260_032


def test_gpt2_words_are_understood() -> None:
    facts = facts_of({"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 10, "n_positions": 16})
    assert facts is not None
    # with biases (4*8 of attention, 32 + 8) and norms of weight and bias
    assert facts.num_parameters == 10 * 8 + 16 * 8 + 2 * (4 * 8 * 8 + 2 * 8 * 32 + 4 * 8 + 40 + 4 * 8) + 2 * 8
    assert facts.context_tokens == 16
    small = facts_of({"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257, "n_positions": 1024})
    assert small is not None
    assert small.num_parameters == 124_439_808  # as published


def test_a_folder_that_is_not_understood_gives_no_facts(tmp_path: Path) -> None:
    assert read_model_facts(tmp_path) is None
    (tmp_path / "config.json").write_text("{broken")
    assert read_model_facts(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    assert read_model_facts(tmp_path) is None


def test_memory_by_hand() -> None:
    config = rl(rollout={"prompts_per_step": 2, "group_size": 2, "max_prompt_tokens": 10, "max_response_tokens": 20})
    sizes = sizes_of(config, llama(1000))
    assert sizes["policy weights"] == sizes["gradients"] == sizes["reference weights"] == 4000
    assert sizes["Adam moments"] == 8000
    assert sizes["key/value cache"] == 4 * 30 * 2 * 5 * (4 * 8) * 4
    assert sizes["activations"] == 120 * 5 * (8 * 64 + 2 * 32 + 3 * 172) * 4
    assert table_of(config).pass_tokens(config) == 4 * 30
    assert "master weights" not in sizes


def test_bfloat16_and_adapters_change_the_memory() -> None:
    facts = llama(1000)
    half, on_cpu = (
        sizes_of(rl(model={"path": "m", "dtype": "bfloat16", "device": device}), facts) for device in ("cuda", "cpu")
    )
    assert (half["policy weights"], half["master weights"]) == (2000, 4000)
    assert on_cpu["key/value cache"] == 2 * half["key/value cache"]  # of float32
    lora = sizes_of(rl(model={"path": "m", "lora": {"rank": 2}}), facts)
    trained = 5 * 2 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 172))
    assert lora["gradients"] == 4 * trained
    assert "reference weights" not in lora


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("nf4", 4)])
def test_weights_of_few_bits_change_the_memory(quantization: str, bits: int) -> None:
    model = {"path": "m", "lora": {"rank": 2}, "quantization": quantization}
    sizes = sizes_of(rl(model=model), llama(500_000))
    linear = 5 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 172)
    assert sizes["policy weights"] == linear * bits // 8 + linear // 16 + 4 * (500_000 - linear)


def test_warnings_name_what_does_not_fit() -> None:
    plan = plan_rl(rl(), Preview(5), facts_of(LLAMA))
    assert any("5 prompts" in warning for warning in plan.warnings)
    assert any("context holds 512" in warning for warning in plan.warnings)


def test_supervised_steps_and_passes_follow_from_each_other() -> None:
    optimization = {"tokens_per_batch": 100, "epochs": 3}
    config = load_run_data({"model": "m", "data": {"train": "a"}, "optimization": optimization}, kind="sft").config
    assert plan_sft(config, Preview(40, 950, 31)).optimizer_steps == 31
    assert plan_sft(config).optimizer_steps is None
    fixed = config.model_copy(update={"steps": 62})
    assert plan_sft(fixed, Preview(steps=31)).passes_over_data == 6.0
    assert plan_sft(fixed).optimizer_steps == 62


def test_kinds_are_read_off_the_keys() -> None:
    assert kind_of_data({"model": "m", "rewards": "math"}) == "rl"
    assert kind_of_data({"model": "m", "max_tokens": 3}) == "sft"
    assert kind_of_data({"model": "m"}, ["algorithm"]) == "rl"
    assert kind_of_data({"model": "m"}, ["normalization"]) == "rm"
    assert kind_of_data({"model": "m", "loss": "best_of"}) == "rm"
    assert kind_of_data({"model": "m"}) == "sft"


def test_ppo_plans_a_critic() -> None:
    ppo = {"algorithm": "ppo", "steps": 10, "rollout": {"prompts_per_step": 64}, "optimization": {"minibatches": 2}}
    plan = plan_rl(rl(**ppo, critic={"warmup_steps": 3}))
    assert plan.optimizer_steps == 10 * 4 * 2
    lines = {line.name: (line.value, line.because) for line in plan.lines}
    assert lines["optimizer steps of the critic"] == ("80", "all of them; the first 24 without the policy")
    assert rl(**ppo, critic={"warmup_steps": 3}).policy_updates == 56
    shared = plan_rl(rl(**ppo, critic={"kind": "shared"}))
    assert "not a second model" in next(m.because for m in shared.models if m.role == "critic")


def test_a_separate_critic_takes_the_memory_of_a_second_trained_model() -> None:
    facts = llama()

    def critic(**sections: Any) -> list[float]:
        sizes = sizes_of(rl(algorithm="ppo", **sections), facts)
        return [size / facts.num_parameters for name, size in sizes.items() if name.startswith("critic")]

    assert critic() == [4, 4, 8]  # weights, gradients, moments
    assert critic(model={"path": "m", "dtype": "bfloat16"}) == [2, 4, 12]  # and masters
    assert critic(critic={"kind": "shared"}) == []


def test_a_critic_from_other_weights_has_sizes_of_its_own() -> None:
    facts, own = llama(), llama(num_hidden_layers=50)
    items = {i.name: i for i in estimate_memory(rl(algorithm="ppo"), replace(facts, critic=own))}
    assert items["critic weights"].num_bytes == 4 * own.num_parameters
    assert items["policy weights"].num_bytes == 4 * facts.num_parameters
    assert items["critic activations"].num_bytes == 10 * items["activations"].num_bytes
    assert (items["activations"].phases, items["critic activations"].phases) == (("update",), ("critic update",))


def test_the_cache_has_room_for_an_evaluation() -> None:
    def rows(**sections: Any) -> float:
        rollout = {"prompts_per_step": 1, "group_size": 2, "max_prompt_tokens": 10, "max_response_tokens": 20}
        return sizes_of(rl(rollout=rollout, **sections), llama(1000))["key/value cache"] / (30 * 2 * 5 * (4 * 8) * 4)

    data = {"train": "a", "eval": "b"}
    assert rows() == 2
    assert rows(data=data, evaluation={"max_prompts": 9}) == 9
    assert rows(data=data, evaluation={"max_prompts": 9, "samples": 4}) == 36
    assert rows(data=data, evaluation={"max_prompts": None}) == 256  # max_batch_rows
    assert rows(data=data, evaluation={"every_steps": None}) == 2


def test_a_second_copy_of_the_weights_is_not_counted(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}
    save_file(weights, tmp_path / "consolidated.safetensors")
    assert count_parameters(tmp_path) == 17
    save_file(weights, tmp_path / "model.safetensors")
    assert count_parameters(tmp_path) == 17
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert count_parameters(tmp_path) == 17


def test_a_critic_that_cannot_leave_zero_is_named() -> None:
    """1e-5 x 64 (hidden size) x 10 steps x 4 epochs = 0.0256."""

    def warnings(**sections: Any) -> list[str]:
        plan = plan_rl(rl(**({"algorithm": "ppo", "steps": 10} | sections)), facts=llama())
        return [warning for warning in plan.warnings if "critic" in warning]

    (warning,) = warnings()
    assert "about 0.026 in the whole run" in warning
    assert "raise critic.learning_rate" in warning
    assert len(warnings(critic={"kind": "shared"})) == 1
    assert warnings(critic={"learning_rate": 1e-3}) == []
    assert warnings(critic={"init": "runs/rm"}) == []
    assert warnings(algorithm="grpo") == []


def test_steps_are_comparisons_over_the_batch_rounded_up() -> None:
    config = rm(optimization={"comparisons_per_batch": 32, "epochs": 2})
    assert plan_rm(config, Preview(100)).optimizer_steps == 7  # 200 / 32
    assert plan_rm(config).optimizer_steps is None
    assert plan_rm(rm(steps=25), Preview(400)).passes_over_data == 2.0


def test_memory_of_a_reward_model_by_hand() -> None:
    config = rm(max_tokens=50, optimization={"comparisons_per_batch": 4})
    assert sizes_of(config, llama(1000)) == {
        "reward model weights": 4000,
        "gradients": 4000,
        "Adam moments": 8000,
        "activations": 4 * 2 * 50 * 5 * (8 * 64 + 2 * 32 + 3 * 172) * 4,
    }
    measured = rm(max_tokens=50, normalization={"kind": "gain_bias", "responses": 8})
    sizes = sizes_of(measured, llama(1000))
    assert sizes["sampling policy"] == 4000
    assert sizes["key/value cache"] == 8 * 50 * 2 * 5 * (4 * 8) * 4


def test_a_comparison_is_never_cut() -> None:
    small = rm(candidates=4, loss="best_of", max_tokens=50, optimization={"tokens_per_microbatch": 10})
    assert table_of(small).pass_tokens(small) == 4 * 50


def test_an_rl_plan_names_its_reward_models() -> None:
    config = rl(rewards={"name": "model:runs/rm", "weight": 0.5})
    (role,) = [role for role in plan_rl(config).models if role.role == "reward_model"]
    assert "runs/rm" in role.because
