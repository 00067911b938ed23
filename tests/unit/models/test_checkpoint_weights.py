"""What `checkpoint_weights` yields is what `save_pretrained` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from burnish.config.schema_data import LoraConfig
from burnish.models.checkpoint_weights import checkpoint_weights
from burnish.models.lora import Adapter

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def build(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2))
    if kind == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=1))
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=kind == "tied"))


@pytest.mark.parametrize("kind", ["tied", "untied", "gpt2", "mixtral"])
def test_names_and_numbers_are_those_on_disk(kind: str, tmp_path: Path) -> None:
    """Experts, which transformers fuses in memory, have their own names again; tied embeddings come once."""
    model = build(kind)
    model.save_pretrained(tmp_path)
    written, found = load_file(tmp_path / "model.safetensors"), dict(checkpoint_weights(model))
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], written[name]) for name in written)


def test_adapters_are_merged_in() -> None:
    model = build("untied")
    before = {name: tensor.clone() for name, tensor in checkpoint_weights(model)}
    adapter = Adapter(model, LoraConfig(rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    merged = dict(checkpoint_weights(model))
    assert merged.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], merged[name])}
    assert "model.layers.1.mlp.up_proj.weight" in changed
    assert "model.embed_tokens.weight" not in changed
    assert adapter.merged_state().keys() == merged.keys()
