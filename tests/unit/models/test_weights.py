"""Weights between policy, engines and disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from burnish.config.schema_data import LoraConfig
from burnish.errors import ModelError
from burnish.forward.quantized_layers import dequantized, quantize, quantized
from burnish.models.lora import Adapter
from burnish.models.weights import checkpoint_layout, named_tensors, take_tensors
from burnish.types import Quantization

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


def adapt(model: Any) -> Adapter:
    """With adapters that change what the model computes."""
    adapter = Adapter(model, LoraConfig(rank=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    return adapter


@pytest.mark.parametrize("kind", ["tied", "untied", "gpt2", "mixtral"])
def test_names_and_numbers_are_those_on_disk(kind: str, tmp_path: Path) -> None:
    """Experts, which transformers fuses in memory, have their own names again; tied embeddings come once."""
    model = build(kind)
    model.save_pretrained(tmp_path)
    written, found = load_file(tmp_path / "model.safetensors"), dict(checkpoint_layout(model, named_tensors(model)))
    assert found.keys() == written.keys()
    assert all(torch.equal(found[name], written[name]) for name in written)


@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_weights_of_few_bits_are_those_that_layers_compute_with(quantization: Quantization, tmp_path: Path) -> None:
    """Also with adapters on some of them, and on disk."""
    model = build("tied")
    names = [name for name, _ in named_tensors(model)]
    whole = {name: tensor.clone() for name, tensor in named_tensors(model)}
    quantize(model, quantization, torch.float32, "off")
    adapter = Adapter(model, LoraConfig(rank=2, target_modules=["q_proj"]))
    found = dict(named_tensors(model))
    assert list(found) == names
    for name, tensor in found.items():
        rounded = (
            dequantized(*quantized(whole[name], quantization), len(whole[name])) if "_proj" in name else whole[name]
        )
        assert torch.equal(tensor, rounded)
    model.save_pretrained(tmp_path, state_dict=adapter.merged_state())
    assert all(torch.equal(tensor, found[name]) for name, tensor in load_file(tmp_path / "model.safetensors").items())


def test_weights_of_few_bits_take_no_others() -> None:
    model = build("untied")
    given = dict(named_tensors(model))
    quantize(model, "nf4", torch.float32, "off")
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.q_proj\.weight .* cannot take other weights"):
        take_tensors(model, given.items())


def test_adapters_are_merged_in() -> None:
    model = build("untied")
    before = {name: tensor.clone() for name, tensor in named_tensors(model)}
    adapter = adapt(model)
    merged = dict(named_tensors(model))
    assert merged.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], merged[name])}
    assert "model.layers.1.mlp.up_proj.weight" in changed
    assert "model.embed_tokens.weight" not in changed
    assert adapter.merged_state().keys() == merged.keys()


def test_merged_weights_are_made_one_at_a_time() -> None:
    """Reading the names alone computes nothing for the layers that come later."""
    model = build("untied")
    Adapter(model, LoraConfig(rank=2))
    made: list[str] = []
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            real = module.get_delta_weight
            module.get_delta_weight = lambda adapter, name=name, real=real: made.append(name) or real(adapter)
    tensors = iter(checkpoint_layout(model, named_tensors(model)))
    while "q_proj" not in next(tensors)[0]:
        pass
    assert made == ["model.layers.0.self_attn.q_proj"]


@pytest.mark.parametrize("kind", ["tied", "untied", "gpt2", "mixtral"])
def test_another_model_takes_the_tensors_over(kind: str) -> None:
    model, other = build(kind), build(kind)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    take_tensors(other, named_tensors(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_model_with_adapters_gives_what_the_ordinary_one_computes() -> None:
    model, plain = build("untied"), build("untied")
    adapt(model)
    take_tensors(plain, named_tensors(model))
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens).logits, model(tokens).logits, atol=1e-5, rtol=0)


def test_tensors_of_another_model_are_refused() -> None:
    model = build("untied")
    with pytest.raises(ModelError, match=r"h\.0\..* no such tensor|transformer.* no such tensor"):
        take_tensors(model, named_tensors(build("gpt2")))
    with pytest.raises(ModelError, match=r"lm_head.weight of shape .3, 16., but LlamaForCausalLM has one of shape"):
        take_tensors(model, [("lm_head.weight", torch.zeros(3, 16))])
    with pytest.raises(ModelError, match=r"lack .* and 17 more of LlamaForCausalLM"):
        take_tensors(model, [("lm_head.weight", torch.zeros(40, 16))])


def test_an_adapted_embedding_that_is_the_head_as_well_is_refused() -> None:
    """Workers and saved weights would have one of the two matrices, the adapted one or the other."""
    config = LoraConfig(rank=2, target_modules=["q_proj", "embed_tokens"])
    with pytest.raises(ModelError, match="adapts the embedding, which is the output head as well"):
        Adapter(build("tied"), config)
    Adapter(build("untied"), config)
