"""How far the sampler's log-probabilities are from the trainer's, for each family of models."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_batches import random_batch
from rows import Figures, Place, Row, Settings, Target
from shapes import load_shape, qwen, write_shape

from burnish.forward.attention import packing_way
from burnish.forward.batch import Batch
from burnish.forward.scoring import ResponseScorer
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.trainers.rl.batching import build_batch
from burnish.types import RolloutRequest

WINDOW = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"] * 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 64},
    "gemma2": {"head_dim": 64, "sliding_window": 64},
    "gemma3_text": {"head_dim": 64, **WINDOW},
    "mistral": {"sliding_window": None},
    "phi3": {},
    "olmo2": {},
    "glm": {"head_dim": 64},
    "qwen3_moe": {"head_dim": 64, **EXPERTS},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "granite": {},
    "gpt2": {"n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 32_768},
}
"""What a family needs beyond hidden size 256, four layers, four heads of two key heads."""
SPREAD = {"initializer_range": 0.1}
"""Weights so large that some tokens are likely: distributions that are nearly uniform would differ little anyway."""
KL = {"float32": 1e-8, "bfloat16": 5e-4}
PUBLISHED = "NeMo-RL's nightly limits: 4e-4 to 5e-4"


def rows(toy: bool) -> list[Row]:
    families = ("qwen2", "gemma3_text") if toy else FAMILIES
    return [
        Row(
            "exact",
            f"{family}, {dtype}",
            {
                "family": family,
                "dtype": dtype,
                "tokens": 24 if toy else 192,
                "prompts": 2 if toy else 16,
                "hidden": 64 if toy else 256,
            },
            90,
            (Target("kl", at_most=KL[dtype], published=PUBLISHED if dtype == "bfloat16" else ""),),
        )
        for dtype in (("float32",) if toy else ("bfloat16", "float32"))
        for family in families
    ]


def measure(settings: Settings, place: Place) -> Figures:
    family, tokens, prompts = settings["family"], settings["tokens"], settings["prompts"]
    shape = qwen(family, settings["hidden"], 4, 4, 2, 512, vocabulary=2048) | SPREAD | FAMILIES[family]
    loaded = load_shape(write_shape(shape, place.folder), place.device.name, settings["dtype"])
    engine = LocalEngine.of(loaded, max_batch_rows=48, context_length=2 * tokens)
    asked = random_batch(2048, prompts=prompts, group=1, prompt=tokens // 2, response=1, shared=True)
    texts = asked.prompt_tokens.tolist()
    requests = [RolloutRequest.of(f"p/{i}", i, tuple(text), (0, 1, 2, 3)) for i, text in enumerate(texts)]
    rollouts = engine.generate(requests, Sampling(tokens, ignore_eos=True), seed=0, step=1)
    batch = build_batch(rollouts, pad_token_id=loaded.pad_token_id, mask_truncated=False)
    scorer = ResponseScorer(loaded.model, vocabulary=loaded.vocabulary)
    scores = scorer.score_in_microbatches(batch, 4096).logprobs_BT
    return distances(batch, scores.double().cpu().numpy()) | {
        "attention": packing_way(loaded.model.config) or "padded rows",
        "entropy": -float(np.mean([p for rollout in rollouts for p in rollout.rollout_logprobs])),
    }


def distances(batch: Batch, trainers: np.ndarray[Any, Any]) -> Figures:
    """Of the tokens that were sampled. The KL is estimated by k3, ratio - 1 - log ratio, which is never negative."""
    assert batch.rollout_logprobs is not None
    difference = (trainers - batch.rollout_logprobs.double().cpu().numpy())[batch.host.loss_mask]
    return {
        "kl": float(np.mean(np.expm1(difference) - difference)),
        "mean_difference": float(np.abs(difference).mean()),
        "max_difference": float(np.abs(difference).max()),
        "tokens": int(difference.size),
    }
