"""`optimization.tokens_per_microbatch: auto`: planned, tried, and kept by the run."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.config.schema_data import ModelConfig
from burnish.errors import CheckpointError, ConfigError
from burnish.forward.fast_paths import FastPaths
from burnish.models.loading import load_model
from burnish.planning.microbatch import FEWEST, MOST, bytes_beside_passes, microbatch_of
from burnish.planning.model_facts import ModelFacts
from burnish.planning.plan import seated
from burnish.planning.processes import Machine
from burnish.planning.rl import plan_rl
from burnish.trainers import microbatch
from burnish.trainers.microbatch import most_that_fit, run_pass, settle_microbatch
from burnish.trainers.run_folder import record_paths, recorded_paths

QWEN = ModelFacts(494_032_768, 24, 896, 4864, 14, 2, 64, 151_936, None)
"""The sizes of Qwen2.5 0.5 B."""
CPU = Machine(cores=8, threads=8, memory_bytes=64 << 30)


def rl(**sections: Any) -> RlConfig:
    fields: dict[str, Any] = {"data": {"train": "a"}, "rewards": "math", "algorithm": "grpo"}
    fields["model"] = {"path": "m", "dtype": "bfloat16"}
    fields["optimization"] = {"tokens_per_microbatch": "auto"}
    fields["rollout"] = {"prompts_per_step": 64, "group_size": 16, "max_response_tokens": 1024}
    return load_run_data({**fields, **sections}).config


def gpus(*gib: int) -> Machine:
    return replace(CPU, gpu_bytes=tuple(size << 30 for size in gib))


@pytest.mark.parametrize(
    ("gib", "tokens"),
    # 494 M x 2 bytes of weights and reference each, 4 of gradients, 12 of masters and moments: 9.2 GiB; a token's
    # activations are 24 layers x (8 x 896 + 2 x 128 + 3 x 4864) x 2 bytes = 1.0 MiB
    [((80,), 32_768), ((24,), 8192), ((16,), 2048), ((80, 24), 8192), ((8,), FEWEST), ((400,), MOST)],
)
def test_as_many_tokens_as_the_smallest_gpu_has_room_for(gib, tokens) -> None:
    assert microbatch_of(rl(), QWEN, gpus(*gib)).tokens == tokens


def test_a_number_stays_and_a_cpu_has_the_default() -> None:
    assert microbatch_of(rl(), QWEN, CPU).tokens == 2048
    assert microbatch_of(rl(), None, gpus(80)).tokens == 2048
    assert microbatch_of(rl(model={"path": "m", "device": "cpu"}), QWEN, gpus(80)).tokens == 2048
    assert microbatch_of(rl(optimization={"tokens_per_microbatch": 77}), QWEN, gpus(80)).tokens == 77
    with pytest.raises(ConfigError, match="tokens_per_microbatch"):
        rl(optimization={"tokens_per_microbatch": "automatic"})


def test_vllm_beside_training_leaves_less() -> None:
    beside = rl(rollout={"engine": "vllm", "vllm": {"options": {"gpu_memory_utilization": 0.4}}})
    assert microbatch_of(beside, QWEN, gpus(80)).tokens < microbatch_of(rl(), QWEN, gpus(80)).tokens


def test_the_plan_says_what_auto_is_and_counts_with_it() -> None:
    config = rl()
    plan = seated(plan_rl(config, facts=QWEN), config, QWEN, gpus(80))
    (line,) = [line for line in plan.lines if line.name == "tokens of a micro-batch, at most"]
    assert line.value == "32,768"
    assert any(item.formula.startswith("32,768 tokens x") for item in plan.memory)


def test_what_is_there_beside_the_passes() -> None:
    assert bytes_beside_passes(rl(algorithm="dapo"), QWEN, gpus(80)) == QWEN.num_parameters * (4 + 4 + 8)


@pytest.mark.parametrize(
    ("needs", "tokens"),
    [
        ({}, 8192),
        ({8192: 11}, 4096),
        ({8192: None, 4096: 11}, 2048),
        ({8192: 11, 4096: None, 2048: 11, 1024: 11, 512: 11}, FEWEST),
    ],
)
def test_halved_until_a_trial_fits(needs, tokens) -> None:
    def needed(number: int) -> int:
        found = needs.get(number, 10)
        if found is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    assert most_that_fit(8192, 10, needed) == tokens


@pytest.fixture(scope="module")
def folder(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("abcdefghijklmn", num_layers=2, num_heads=4, context_length=128)


@pytest.mark.parametrize("tokens", [1, 70, 1000])
def test_a_trial_goes_over_as_many_tokens_as_it_says(folder, tokens, monkeypatch) -> None:
    loaded = load_model(ModelConfig(path=str(folder), device="cpu", kernels="off"))
    seen = []
    loaded.model.get_input_embeddings().register_forward_hook(lambda module, given, output: seen.append(given[0]))
    run_pass(loaded, 32, tokens)
    assert seen[-1].numel() in range(min(tokens, 32), tokens + 64)
    assert all(weight.grad is not None for weight in loaded.model.parameters())


def test_a_resumed_run_has_what_it_began_with(tmp_path, monkeypatch) -> None:
    """Even where the machine or its free memory is another one."""
    config = rl(cluster={"trainers": 2, "lanes": 2})  # which this process does not load a model for
    for offered in (4096, 16_384):
        monkeypatch.setattr(microbatch, "_tokens", lambda config, loaded, offered=offered: offered)
        paths = recorded_paths(tmp_path)
        assert settle_microbatch(config, paths).optimization.tokens_per_microbatch == 4096
        assert "passes by 4,096 tokens at a time" in paths.lines()[0]
        record_paths(tmp_path, paths)
    ways = json.loads((tmp_path / "paths.json").read_text())
    paths = FastPaths({entry: "many" for entry in ways["ways"]})
    with pytest.raises(CheckpointError, match="'many', which is not a number of tokens"):
        settle_microbatch(config, paths)


def test_a_number_of_the_run_file_is_nobodys_choice() -> None:
    config, paths = rl(optimization={"tokens_per_microbatch": 77}), FastPaths()
    assert settle_microbatch(config, paths) is config
    assert paths.record() == {}
