from collections.abc import Callable
from functools import partial
from typing import Any

import peft
import pytest
import torch

from burnish.errors import KernelError, RolloutError
from burnish.forward.quantized_layers import quantize
from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.decoders import ModelDecoder
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.kernel_trial import can_decode, decodes_alike
from burnish.rollouts.local.packed_weights import Layout, has_blocks, joined_product
from burnish.types import Quantization, RolloutRequest

from ..conftest import assert_alike, local_engine

MAKE = partial(KernelDecoder, layout="panels")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.compiler
def test_the_families_decode_as_the_model_does(make_model: Callable[..., Any], kind: str, dtype: torch.dtype) -> None:
    model = make_model(kind).to(dtype)
    assert can_decode(model)
    assert decodes_alike(model, MAKE)


def test_other_models_are_left_to_themselves(make_model: Callable[..., Any]) -> None:
    assert not can_decode(make_model("gpt2"))
    assert not can_decode(make_model("llama").double())


@pytest.mark.parametrize("change", ["norm", "scale", "activation"])
@pytest.mark.compiler
def test_a_layer_that_computes_otherwise_is_found_out(make_model: Callable[..., Any], change: str) -> None:
    model = make_model("llama")
    layer = model.model.layers[1]
    if change == "norm":
        layer.input_layernorm.register_forward_hook(lambda *given: given[2] * 1.01)
    elif change == "scale":
        model.model.layers[0].register_forward_hook(lambda *given: given[2] * 1.01)
    else:
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: (given[0] + 0.01,))
    assert not decodes_alike(model, MAKE)


@pytest.mark.compiler
@pytest.mark.parametrize("place", ["norm", "keys", "gate"])
def test_weights_that_are_not_finite_do_not_pass(make_model: Callable[..., Any], place: str) -> None:
    model = make_model("llama")
    layer = model.model.layers[0]
    weight = {"norm": model.model.norm, "keys": layer.self_attn.k_proj, "gate": layer.mlp.gate_proj}[place].weight
    weight.data[0] = torch.nan
    assert not decodes_alike(model, MAKE)


@pytest.mark.compiler
@pytest.mark.parametrize("quantization", [None, "int8", "nf4"])
def test_adapters_are_added_in_or_beside_weights_in_few_bits(
    make_model: Callable[..., Any], quantization: Quantization | None
) -> None:
    """The adapter sits inside the model, as Burnish trains it; its present weights decode."""
    model = make_model("llama" if quantization is None else "qwen2")
    if quantization is not None:
        quantize(model, quantization, torch.float32, "auto")
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    assert can_decode(model)
    assert decodes_alike(model, MAKE)
    with wrapped.disable_adapter():
        assert decodes_alike(model, MAKE)


@pytest.mark.slow
@pytest.mark.compiler
def test_kernels_and_plain_engines_sample_the_same(make_model: Callable[..., Any], tokenizer: Any) -> None:
    """Ends at different times, fewer places than samples, prompts of different lengths, one of a single token."""
    model = make_model("qwen3")
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, 64, (length,), generator=generator) for length in (1, 7, 30, 7, 2, 19)]
    requests = [RolloutRequest.of(f"p{n}", n, tuple(p.tolist()), tuple(range(5))) for n, p in enumerate(prompts)]
    engines = (
        local_engine(model, tokenizer, eos_token_ids=(1, 9), max_batch_rows=11, **way)
        for way in ({"kernels": "required"}, {"plain": True})
    )
    kernels, plain = (engine.generate(requests, Sampling(60), seed=0, step=0) for engine in engines)
    assert len({len(rollout.response_tokens) for rollout in kernels}) > 5
    assert_alike(kernels, plain, within=1e-5)


@pytest.mark.parametrize("layout", [pytest.param("panels", marks=pytest.mark.compiler), "blocks", "ordinary"])
def test_a_joined_product_is_that_of_the_layers_side_by_side(layout: Layout) -> None:
    if layout == "blocks" and not has_blocks(torch.device("cpu"), torch.float32):
        pytest.skip("this PyTorch has no oneDNN")
    torch.manual_seed(0)
    first, second = torch.nn.Linear(5, 3), torch.nn.Linear(5, 2, bias=False)
    inputs = torch.randn(4, 5)
    with torch.no_grad():
        expected = torch.cat([first(inputs), second(inputs)], dim=1)
        torch.testing.assert_close(joined_product(first, second, layout=layout)(inputs), expected)
        torch.testing.assert_close(joined_product(second, layout=layout)(inputs), expected[:, 3:])
    with pytest.raises(TypeError, match="Embedding"):
        joined_product(torch.nn.Embedding(3, 3), layout=layout)


def test_an_engine_without_a_compiler_goes_without_or_refuses(
    make_model: Callable[..., Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_kernels.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    auto, off = (local_engine(make_model("llama"), tokenizer, kernels=kernels) for kernels in ("auto", "off"))
    assert auto._loop.make_decoder.func is ModelDecoder
    asked = [RolloutRequest.of("p", 0, (5, 6, 7), (0, 1, 2))], Sampling(8)
    assert auto.generate(*asked, seed=0, step=0) == off.generate(*asked, seed=0, step=0)
    with pytest.raises(KernelError, match="no-such-compiler"):
        local_engine(make_model("llama"), tokenizer, kernels="required")


@pytest.mark.compiler
def test_kernels_that_are_required_must_fit_the_model(make_model: Callable[..., Any]) -> None:
    assert local_engine(make_model("llama"), None, kernels="required")._loop.make_decoder.func is KernelDecoder
    with pytest.raises(RolloutError, match=r"model\.kernels is `required`"):
        local_engine(make_model("gpt2"), None, kernels="required")
