"""Linear layers with weights in few bits."""

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from burnish.errors import KernelError, ModelError
from burnish.forward import quantized_layers
from burnish.forward.quantized_layers import QuantizedLinear, dequantized, is_quantized, quantize, quantized, restore
from burnish.kernels.products import QuantizedKernels
from burnish.types import Quantization

KINDS = pytest.mark.parametrize("kind", ["int8", "nf4"])
NF4 = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626)


def build() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=40, num_hidden_layers=2, attention_bias=True, **sizes)
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def test_int8_by_hand() -> None:
    """The largest of a group is exact; the others are multiples of its 127th part."""
    weight = torch.tensor([[127.0, -3.4, 0.6, 0.4], [0.0, 0.0, 0.0, 0.0], [-2.54, 0.01, 0.02, 1.27]])
    codes, scales = quantized(weight, "int8")
    assert codes.shape == (1, 4, 64)
    assert codes[0, :, :3].T.tolist() == [[127, -3, 1, 0], [0, 0, 0, 0], [-127, 0, 1, 64]]
    assert scales.shape == (1, 1, 64)
    assert torch.equal(scales[0, 0, :3], torch.tensor([1.0, 0.0, 2.54 / 127]))
    assert dequantized(codes, scales, 3)[0].tolist() == [127, -3, 1, 0]


def test_nf4_by_hand() -> None:
    weight = torch.tensor([[2.0, -2.0, 1.4, 0.03, 0.1, -0.7]])
    codes, scales = quantized(weight, "nf4")
    assert codes.shape == (1, 6, 32)
    assert (codes[0, :, 0] & 15).tolist() == [15, 0, 14, 7, 8, 3]
    assert (codes[0, :, 0] >> 4).tolist() == [7] * 6  # output 32, which is padding: zero
    wanted = torch.tensor([[2.0, -2.0, 2 * 0.7230, 0.0, 2 * 0.0796, 2 * NF4[3]]])
    torch.testing.assert_close(dequantized(codes, scales, 1), wanted, atol=2e-4, rtol=0)


@KINDS
def test_each_group_of_64_inputs_has_its_scale(kind: Quantization) -> None:
    weight = torch.ones(70, 130)
    weight[:, 64:128] = 1e-4
    weight[69, 128:] = 5e3
    codes, scales = quantized(weight, kind)
    torch.testing.assert_close(dequantized(codes, scales, 70), weight)


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.007), ("nf4", 0.1)])
def test_rounding_is_as_small_as_the_bits_allow(kind: Quantization, most: float) -> None:
    weight = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
    codes, scales = quantized(weight, kind)
    assert (dequantized(codes, scales, 128) - weight).norm() < most * weight.norm()
    assert codes.nbytes + scales.nbytes == weight.numel() * quantized_layers.BITS[kind] / 8 + weight.numel() / 16


def test_nf4_is_that_of_bitsandbytes() -> None:
    """An implementation by the paper's authors, where it is installed: the same codes and scales."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    weight = torch.randn(192, 256, generator=torch.Generator().manual_seed(0))
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    assert torch.equal(dequantized(*quantized(weight, "nf4"), 192), functional.dequantize_4bit(packed, state))


@KINDS
@pytest.mark.parametrize("kernels", ["off", pytest.param("required", marks=pytest.mark.compiler)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_a_model_with_the_rounded_weights(kind, kernels, dtype) -> None:
    """To the bit: of the embedding below all layers, and of hidden states of any number of dimensions."""
    model = build()
    quantize(model, kind, dtype, kernels)
    assert is_quantized(model)
    whole = copy.deepcopy(model)
    restore(whole)
    assert not is_quantized(whole)
    tokens = torch.arange(24).view(2, 12)
    found, wanted = _gradient(model, tokens), _gradient(whole, tokens)
    assert found.dtype == dtype
    assert torch.equal(found, wanted)


def _gradient(model: Any, tokens: Tensor) -> Tensor:
    model.requires_grad_(False)
    embedding = model.get_input_embeddings().weight.requires_grad_()
    logits = model(input_ids=tokens).logits.float()
    loss = torch.log_softmax(logits, -1).gather(-1, tokens.roll(-1, 1)[..., None]).sum()
    (gradient,) = torch.autograd.grad(loss, embedding)
    return gradient


@pytest.mark.compiler
@KINDS
@pytest.mark.parametrize(
    ("shape", "takes"), [((1, 80), True), ((64, 80), True), ((65, 80), False), ((1, 2, 80), False)]
)
def test_few_rows_without_gradient_take_the_kernel(kind, shape, takes, monkeypatch) -> None:
    model, taken = build(), []
    quantize(model, kind, torch.float32, "required")
    layer, multiply = model.model.layers[0].mlp.down_proj, QuantizedKernels.multiply
    monkeypatch.setattr(QuantizedKernels, "multiply", lambda *given: taken.append(given) or multiply(*given))
    inputs = torch.randn(shape)
    with torch.no_grad():
        found = layer(inputs)
    assert bool(taken) == takes
    torch.testing.assert_close(found, layer(inputs.requires_grad_()).detach())
    assert len(taken) == takes


@pytest.mark.compiler
@KINDS
def test_another_dtype_reaches_no_kernel(kind: Quantization) -> None:
    """A kernel would read and write beyond the numbers."""
    model = build()
    quantize(model, kind, torch.float32, "required")
    with torch.no_grad(), pytest.raises(RuntimeError, match="same dtype"):
        model.model.layers[0].mlp.down_proj(torch.randn(2, 80).bfloat16())


def test_what_stays_whole_has_the_dtype_of_the_run() -> None:
    """Embedding, head, norms and biases."""
    model = build()
    whole = {name for name, _ in model.named_parameters() if not name.endswith("_proj.weight")}
    quantize(model, "nf4", torch.bfloat16, "off")
    assert {name for name, _ in model.named_parameters()} == whole >= {"lm_head.weight", "model.embed_tokens.weight"}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.dtype == model.config.dtype == torch.bfloat16
    assert type(model.lm_head) is nn.Linear
    assert type(model.model.layers[1].mlp.up_proj) is QuantizedLinear


@KINDS
def test_the_state_has_the_names_of_an_ordinary_model_and_no_numbers_in_few_bits(kind: Quantization) -> None:
    """So nobody takes codes for weights: a copy of them would fail."""
    model, names = build(), list(build().state_dict())
    quantize(model, kind, torch.float32, "off")
    state = model.state_dict()
    assert list(state) == names
    assert state["model.layers.0.mlp.up_proj.weight"].is_meta
    assert state["model.layers.0.mlp.up_proj.weight"].shape == (80, 32)
    assert not state["model.layers.0.self_attn.q_proj.bias"].is_meta


def test_a_model_without_such_layers_is_refused() -> None:
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(ModelError, match="'nf4', but GPT2LMHeadModel has no layers of the class"):
        quantize(model, "nf4", torch.float32, "off")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_layers, "quantized_kernels", Mock(side_effect=KernelError("there is no C compiler")))
    with pytest.raises(KernelError, match="no C compiler"):
        quantize(build(), "nf4", torch.float32, "required")
    model = build()
    quantize(model, "nf4", torch.float32, "auto")
    assert not model.model.layers[0].mlp.up_proj.uses_kernels
    assert model(input_ids=torch.arange(4)[None]).logits.shape == (1, 4, 40)
