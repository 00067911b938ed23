"""Every architecture samples and trains with the numbers that the model gives each text alone, or is refused by name.

Configs are tiny: windows of 8 tokens and texts of up to 58, so that whatever a model does at a boundary happens here.
"""

from typing import Any

import pytest
import torch
from batches import batch_of
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.errors import ModelError, RolloutError
from burnish.forward.batch import Batch
from burnish.forward.probe import use_packed_rows
from burnish.forward.scoring import ResponseScorer
from burnish.machine.processor import TIMING
from burnish.models.loading import prepare_for_training
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local import static_decoder, static_trial
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.static_steps import StaticSteps
from burnish.types import Rollout, RolloutRequest

CONTEXT = 64
PLAIN = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
USUAL = PLAIN | {"num_key_value_heads": 2}
NARROW = USUAL | {"head_dim": 8}
GPT = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
STATE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
BART = {"d_model": 32, "vocab_size": 64, "max_position_embeddings": CONTEXT, "is_encoder_decoder": False}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
LATENT = ROUTED | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
DEEPSEEK = PLAIN | LATENT | {"num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 16}

ALIKE: list[tuple[dict[str, Any], str]] = [
    (GPT, "gpt2 gpt_bigcode openai-gpt"),
    (GPT | {"rotary_dim": 4}, "gptj codegen"),
    (PLAIN, "gpt_neox biogpt persimmon moshi"),
    (USUAL, "phi phi3 llama qwen2 stablelm olmo olmo2 granite cohere nemotron diffllama apertus bitnet doge"),
    (USUAL | SLIDING, "olmo3 cohere2 exaone4"),
    (USUAL | LOCAL_MOE, "phimoe granitemoe"),
    (NARROW, "gemma qwen3 glm glm4 ernie4_5 seed_oss helium"),
    (DEEPSEEK, "deepseek_v2 deepseek_v3"),
]
"""Settings that several architectures take."""
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, settings) for settings, names in ALIKE for name in names.split()
} | {
    "gpt_neo": (
        "gpt_neo",
        STATE
        | {"num_layers": 2, "num_heads": 4, "max_position_embeddings": CONTEXT, "intermediate_size": 48}
        | {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    ),
    "ctrl": ("ctrl", GPT | {"dff": 48}),
    "opt": ("opt", PLAIN | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": ("bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon with alibi": ("falcon", PLAIN | {"alibi": True}),
    "falcon": ("falcon", PLAIN | {"alibi": False}),
    "falcon, new": ("falcon", PLAIN | {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "mpt": ("mpt", {"vocab_size": 64, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT}),
    "phi3 with a window": ("phi3", USUAL | {"sliding_window": 8}),
    "gemma2": ("gemma2", NARROW | {"sliding_window": 8}),
    "gemma3": ("gemma3_text", NARROW | SLIDING),
    "vaultgemma": ("vaultgemma", NARROW | SLIDING),
    "recurrent_gemma": (
        "recurrent_gemma",
        PLAIN
        | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "num_key_value_heads": 1}
        | {"block_types": ["recurrent", "recurrent", "attention"]},
    ),
    "llama4": (
        "llama4_text",
        NARROW
        | {"num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": 8}
        | {"no_rope_layers": [1, 0], "moe_layers": [1]},
    ),
    "mistral": ("mistral", USUAL | {"sliding_window": None}),
    "mistral with a window": ("mistral", USUAL | {"sliding_window": 8}),
    "ministral": ("ministral", NARROW | SLIDING),
    "mixtral": ("mixtral", USUAL | LOCAL_MOE | {"output_router_logits": True, "sliding_window": 8}),
    "qwen2 with a window": ("qwen2", USUAL | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen2_moe": ("qwen2_moe", USUAL | MOE | {"shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("qwen3_moe", NARROW | MOE | {"output_router_logits": True}),
    "qwen3_next": (
        "qwen3_next",
        NARROW
        | MOE
        | {"layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 24}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
        | {"linear_value_head_dim": 8},
    ),
    "starcoder2": ("starcoder2", USUAL | {"sliding_window": 8}),
    "olmoe": ("olmoe", USUAL | {"num_experts": 4, "num_experts_per_tok": 2}),
    "granitemoehybrid": (
        "granitemoehybrid",
        USUAL | LOCAL_MOE | MAMBA | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 24},
    ),
    "mamba": ("mamba", STATE | {"state_size": 4}),
    "mamba2": ("mamba2", STATE | {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    "falcon_mamba": ("falcon_mamba", STATE | {"state_size": 4}),
    "falcon_h1": ("falcon_h1", NARROW | MAMBA | {"mamba_d_ssm": 32, "mamba_d_head": 8, "mamba_chunk_size": 8}),
    "jamba": (
        "jamba",
        USUAL
        | {"num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 4, "use_mamba_kernels": False}
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    "bamba": ("bamba", USUAL | MAMBA | {"attn_layer_indices": [1], "mamba_chunk_size": 8}),
    "zamba2": (
        "zamba2",
        PLAIN
        | {"layers_block_type": ["mamba", "hybrid"], "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_headdim": 16}
        | {"num_mem_blocks": 1, "use_mem_rope": True, "adapter_rank": 4, "chunk_size": 8},
    ),
    "rwkv": ("rwkv", STATE | {"context_length": CONTEXT, "attention_hidden_size": 32}),
    "xlstm": ("xlstm", STATE | {"num_heads": 2, "chunk_size": 8, "mode": "inference"}),
    "lfm2": ("lfm2", USUAL | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}),
    "minimax": (
        "minimax",
        NARROW | LOCAL_MOE | {"layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    ),
    "xglm": ("xglm", BART | {"ffn_dim": 48, "num_layers": 2, "attention_heads": 4}),
    "bert as a decoder": ("bert", PLAIN | {"is_decoder": True}),
    "roberta as a decoder": ("roberta", PLAIN | {"is_decoder": True, "max_position_embeddings": CONTEXT + 2}),
    "glm4_moe": ("glm4_moe", NARROW | ROUTED),
    "smollm3": ("smollm3", USUAL | SLIDING | {"no_rope_layers": [1, 0], "use_sliding_window": True}),
    "gpt_oss": ("gpt_oss", NARROW | LOCAL_MOE | SLIDING),
    "hunyuan": ("hunyuan_v1_dense", NARROW),
    "jetmoe": ("jetmoe", USUAL | LOCAL_MOE | {"kv_channels": 8}),
    "afmoe": ("afmoe", NARROW | MOE | SLIDING | {"num_dense_layers": 1}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("bert", PLAIN, "bert model lets a token see the tokens after it"),
    "xlnet": ("xlnet", {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "xlnet model lets"),
    "big_bird": ("big_bird", PLAIN | {"is_decoder": True, "block_size": 4}, "block-sparse attention of this big_bird"),
    "bart": ("bart", BART | {"decoder_layers": 2, "decoder_attention_heads": 4, "is_decoder": True}, "this bart model"),
    "rwkv": ("rwkv", STATE | {"rescale_every": 1}, "this rwkv model divides its own weights"),
}
DRIFTS = {"zamba2": 1e-3}
"""Bound of the difference in nats; elsewhere BOUND. This model's own step departs from its pass over the text."""
BOUND = 1e-4


def build(model_type: str, settings: dict[str, Any]) -> Any:
    """With weights large enough that attention matters."""
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(0)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for weight in model.parameters():
        if weight.dim() > 1 and weight.std() < 0.15:
            torch.nn.init.normal_(weight, 0.0, 0.15)
    prepare_for_training(model)
    return model


class NoTexts:
    """A tokenizer for tokens that mean nothing."""

    def decode(self, tokens: Any, **_: Any) -> str:
        return ""


def sample(model: Any, *, context: int = CONTEXT, lengths: tuple[int, ...] = (3, 20, 1, 9, 33, 5)) -> list[Rollout]:
    """Three responses each to prompts of these lengths; a place for seven rows makes rows enter and leave."""
    engine = LocalEngine(
        model, tokenizer=NoTexts(), eos_token_ids=[1], pad_token_id=0, context_length=context, max_batch_rows=7
    )
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(2, 64, (length,), generator=generator).tolist()) for length in lengths]
    requests = [RolloutRequest.of(f"p{i}", i, prompt, (0, 1, 2)) for i, prompt in enumerate(prompts)]
    return engine.generate(requests, Sampling(25), seed=0, step=0)


@torch.no_grad()
def alone(model: Any, rollout: Rollout) -> torch.Tensor:
    """Log-probabilities of the response by the model's own pass over this one text."""
    tokens = torch.tensor([rollout.prompt_tokens + rollout.response_tokens])
    logits = model(input_ids=tokens, use_cache=False).logits[0, len(rollout.prompt_tokens) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(rollout.response_tokens)[:, None])[:, 0]


def batch_from(rollouts: list[Rollout]) -> Batch:
    groups = torch.tensor([rollout.group_id for rollout in rollouts])
    return batch_of([r.prompt_tokens for r in rollouts], [r.response_tokens for r in rollouts], group_ids=groups)


def check_passes(model: Any, rollouts: list[Rollout], budget: int, expected: list[torch.Tensor], bound: float) -> None:
    """Passes in micro-batches and one pass against each text alone."""
    batch, scorer = batch_from(rollouts), ResponseScorer(model)
    cut, whole = scorer.score_in_microbatches(batch, budget).logprobs_BT, scorer.score(batch).logprobs_BT
    whole.sum().backward()
    for found in (cut, whole.detach()):
        for row, own in enumerate(expected):
            assert (found[row, : len(own)] - own).abs().max() < bound


def check(model: Any, rollouts: list[Rollout], bound: float) -> None:
    """Sampling and passes, packed where the model can, against each text alone."""
    expected = [alone(model, rollout) for rollout in rollouts]
    for rollout, own in zip(rollouts, expected, strict=True):
        assert (torch.tensor(rollout.rollout_logprobs) - own).abs().max() < bound
    check_passes(model, rollouts, 150, expected, bound)
    if use_packed_rows(model):
        check_passes(model, rollouts, 150, expected, bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_a_text_has_the_numbers_that_it_has_alone(name: str) -> None:
    model = build(*ZOO[name])
    check(model, sample(model), DRIFTS.get(name, BOUND))


@pytest.mark.slow_cases("opt", "llama4", "gpt_oss", "deepseek_v3", "qwen3_moe")
@pytest.mark.parametrize("name", ["opt", "gemma2", "llama4", "gpt_oss", "deepseek_v3", "qwen3_moe"])
def test_so_it_has_in_steps_of_fixed_shapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, without CUDA graphs."""
    monkeypatch.setattr(static_trial, "_DEVICES", ("cpu",))
    monkeypatch.setattr(static_decoder, "CudaGraphs", lambda device: None)
    monkeypatch.setenv(TIMING, "off")
    model = build(*ZOO[name])
    use_packed_rows(model)
    blocks, block = [], StaticSteps.block
    monkeypatch.setattr(StaticSteps, "block", lambda *given: blocks.append(block(*given)) or blocks[-1])
    check(model, sample(model), BOUND)
    assert len(blocks) > 3


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_served_are_refused_by_name(name: str) -> None:
    model_type, settings, said = REFUSED[name]
    model = build(model_type, settings)
    with pytest.raises(RolloutError, match=said):
        sample(model)
    with pytest.raises(ModelError, match=said):
        ResponseScorer(model)


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 2.0, **FACTORS},
    "original_max_position_embeddings": 32,
}


def test_angles_that_depend_on_length_do_not_depend_on_neighbours() -> None:
    """Phi-3's long texts: rows of either side of the boundary in one batch, in training as alone."""
    model = build("phi3", USUAL | LONGROPE)
    texts = build("llama", USUAL)  # samples texts across the boundary, which the other would refuse
    rollouts = sample(texts)
    lengths = [len(rollout.prompt_tokens) + len(rollout.response_tokens) for rollout in rollouts]
    assert min(lengths) <= 32 < max(lengths)
    check_passes(model, rollouts, 10_000, [alone(model, rollout) for rollout in rollouts], BOUND)


def test_sampling_across_such_a_boundary_is_refused_and_up_to_it_is_right() -> None:
    model = build("phi3", USUAL | LONGROPE)
    with pytest.raises(RolloutError, match=r"up to 33 tokens, but this phi3 model .* longer than 32") as refusal:
        sample(model, context=33)
    assert "rollout.max_prompt_tokens + rollout.max_response_tokens at or below 32" in str(refusal.value)
    check(model, sample(model, context=32, lengths=(3, 20, 1, 9)), BOUND)


def test_dynamic_angles_are_refused_beyond_their_boundary_everywhere() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = build("llama", USUAL | {"rope_parameters": dynamic, "max_position_embeddings": 32})
    with pytest.raises(RolloutError, match="longer than 32 tokens"):
        sample(model, context=64)
    rollouts = sample(build("llama", USUAL))
    with pytest.raises(ModelError, match="beyond 32 this model's rotations"):
        ResponseScorer(model).score(batch_from(rollouts))
    check(model, sample(model, context=32, lengths=(3, 20, 1, 9)), BOUND)
