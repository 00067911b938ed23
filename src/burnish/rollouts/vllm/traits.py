"""Traits of the vLLM engine, and the options that it refuses; see `EngineTraits`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.config.engines import FALLBACK, EngineTraits
from burnish.config.problems import Problem
from burnish.config.schema_data import ModelConfig
from burnish.config.schema_rollout import RolloutConfig
from burnish.errors import ConfigError

_RESERVED = {
    "model": "the policy is model.path",
    "tokenizer": "the tokenizer is the policy's",
    "skip_tokenizer_init": "stop texts need the tokenizer",
    "load_format": "weights come from the policy in training",
    "generation_config": "sampling is what `rollout` says",
    "logprobs_mode": "log-probabilities must be those of the distribution that was sampled from",
    "logits_processors": "log-probabilities must be those of the distribution that was sampled from",
    "max_model_len": "it is rollout.max_prompt_tokens + rollout.max_response_tokens, up to the model's context",
    "max_num_seqs": "it is rollout.max_batch_rows",
    "seed": "every response has its own seed",
    "enable_sleep_mode": "it is cluster.offload: [rollout_engine]",
    "quantization": "weights are sent as they are",
    "trust_remote_code": "vLLM builds the model from its own code",
    "pipeline_parallel_size": "an engine is on one machine: tensor_parallel_size says on how many of its GPUs",
    "data_parallel_size": "cluster.rollout_workers says how many engines there are",
    "distributed_executor_backend": "vLLM starts its own processes for tensor_parallel_size",
}


class _VllmTraits(EngineTraits):
    """With what depends on its section of the run file."""

    def options(self, rollout: RolloutConfig) -> Mapping[str, Any]:
        return rollout.vllm.options

    def place(self, rollout: RolloutConfig) -> str:
        return f", in its own process ({rollout.vllm.python or 'this interpreter'})"

    def check(self, rollout: RolloutConfig, model: ModelConfig) -> Iterator[Problem]:
        """Settings that vLLM interprets differently, or cannot follow."""
        if model.device.startswith("mps"):
            message = "is vllm, which needs a CUDA GPU, but model.device is mps"
            yield Problem("rollout.engine", message, f"set it to {FALLBACK}")
        if rollout.top_p < 1 and rollout.min_p > 0:
            filters = f"{rollout.min_p:g} with top_p {rollout.top_p:g}"
            message = f"is {filters}: vLLM applies min_p first, other engines top_p"
            yield Problem("rollout.min_p", message, f"use one of the two, or rollout.engine: {FALLBACK}")
        if model.trust_remote_code:
            message = "is true, but vLLM builds the model from its own code"
            yield Problem("model.trust_remote_code", message, f"set it to false, or rollout.engine: {FALLBACK}")

    def check_here(self, rollout: RolloutConfig) -> None:
        """ConfigError if vLLM cannot run here, or the interpreter does not have it."""
        from burnish.rollouts.vllm.process import has_vllm  # imports torch

        if not sys.platform.startswith("linux"):
            raise ConfigError(f"rollout.engine is vllm, which needs Linux, not {sys.platform}", remedy="use local")
        python = rollout.vllm.interpreter
        try:
            found = has_vllm(python)
        except OSError as error:
            raise ConfigError(
                f"rollout.vllm.python is {python!r}, which cannot be started: {error}",
                remedy="name the interpreter of an environment that has vLLM, for example envs/vllm/bin/python",
            ) from error
        if not found:
            raise ConfigError(
                f"rollout.engine is vllm, but {python} has no vllm",
                remedy=f"install it there ({python} -m pip install vllm), or set rollout.vllm.python to the "
                "interpreter of an environment that has it",
            )


TRAITS = _VllmTraits(
    label="vLLM",
    copies=True,
    takes_adapters=True,
    sleeps="on GPUs",
    lowest_temperature=0.01,  # vLLM raises lower ones to this
    reserved=_RESERVED,
    gpus_option="tensor_parallel_size",
    gpu_share=0.92,
    share_options=("gpu_memory_utilization", "kv_cache_memory_bytes"),
    log="vllm.log",
    step_seconds=4e-3,  # assumed: it replays a graph
    options_field="rollout.vllm.options",
)
