"""A policy of a shape, batches of random tokens, and the objectives of the two trainings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from device import Device
from shapes import FIRST_WORD, load_shape

from burnish.config.loading import load_run_data
from burnish.config.schema_data import LoraConfig
from burnish.forward.batch import Batch
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Objective
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.rl.setup.objective import objectives


def open_policy(
    folder: Path, device: Device, tokens: int, *, lora: bool = False, dtype: str = "bfloat16", **fields: Any
) -> LocalPolicy:
    """tokens: of a micro-batch."""
    return LocalPolicy(
        load_shape(folder, device.name, dtype, **fields),
        OptimizerSettings(1e-6, 1000),
        tokens_per_microbatch=tokens,
        lora=LoraConfig() if lora else None,
    )


def random_batch(
    vocabulary: int, *, prompts: int, group: int, prompt: int, response: int, shared: bool, seed: int = 0
) -> Batch:
    """`prompts` x `group` rows of these lengths, with advantages. Not `shared`: each row has a prompt of its own."""
    drawn = torch.Generator().manual_seed(seed)
    count = prompts * group
    asked = torch.randint(FIRST_WORD, vocabulary, (prompts if shared else count, prompt), generator=drawn)
    return Batch(
        prompt_tokens=asked.repeat_interleave(group, 0) if shared else asked,
        prompt_lengths=torch.full((count,), prompt),
        response_tokens=torch.randint(FIRST_WORD, vocabulary, (count, response), generator=drawn),
        response_lengths=torch.full((count,), response),
        loss_mask=torch.ones(count, response, dtype=torch.bool),
        group_ids=torch.arange(prompts).repeat_interleave(group),
        advantages=torch.randn(count, 1, generator=drawn).expand(count, response).contiguous(),
    )


def causal_pairs(*, prompts: int, group: int, prompt: int, response: int, shared: bool) -> int:
    """Queries with keys that they see, as a pass over such a batch has them at least."""
    of_prompts = prompt * (prompt + 1) // 2 * prompts * (1 if shared else group)
    return of_prompts + prompts * group * (response * prompt + response * (response + 1) // 2)


@functools.cache
def grpo_objective() -> Objective:
    config = load_run_data(
        {"output": "-", "model": "-", "data": {"train": "-"}, "rewards": ["exact"], "steps": 1}
    ).config
    return objectives(config, resolve_algorithm(config.algorithm))(0.0)


def sft_objective() -> Objective:
    return LikelihoodObjective()
