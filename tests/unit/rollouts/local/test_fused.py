from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch

from burnish.errors import KernelError, RolloutError
from burnish.forward.quantized_layers import quantize
from burnish.kernels.decoding import decode_kernels
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.cache import PrefilledPrompts
from burnish.rollouts.local.decoders import MakeDecoder
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.local.fused import FusedDecoder, can_decode, decodes_alike
from burnish.rollouts.local.kernel_decoder import KernelDecoder
from burnish.rollouts.local.packed_weights import Layout, has_blocks, joined_product
from burnish.rollouts.local.shared_cache import CacheShape, SharedCache
from burnish.types import Quantization, RolloutRequest, UseKernels

EITHER = pytest.mark.parametrize("make", [FusedDecoder, pytest.param(KernelDecoder, marks=pytest.mark.compiler)])
SHAPE = CacheShape(layers=1, heads=4, key_heads=2, head_size=8, scaling=0.25)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@EITHER
def test_the_families_decode_as_the_model_does(
    make_model: Callable[..., Any], kind: str, dtype: torch.dtype, make: MakeDecoder
) -> None:
    model = make_model(kind).to(dtype)
    assert can_decode(model)
    assert decodes_alike(model, make)


def test_other_models_are_left_to_themselves(make_model: Callable[..., Any]) -> None:
    assert not can_decode(make_model("gpt2"))
    assert not can_decode(make_model("llama").double())


@pytest.mark.parametrize("change", ["norm", "scale", "activation"])
@EITHER
def test_a_layer_that_computes_otherwise_is_found_out(
    make_model: Callable[..., Any], change: str, make: MakeDecoder
) -> None:
    model = make_model("llama")
    layer = model.model.layers[1]
    if change == "norm":
        layer.input_layernorm.register_forward_hook(lambda *given: given[2] * 1.01)
    elif change == "scale":
        model.model.layers[0].register_forward_hook(lambda *given: given[2] * 1.01)
    else:
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, given: (given[0] + 0.01,))
    assert not decodes_alike(model, make)


@EITHER
@pytest.mark.parametrize("place", ["norm", "keys", "gate"])
def test_weights_that_are_not_finite_do_not_pass(make_model: Callable[..., Any], place: str, make: MakeDecoder) -> None:
    model = make_model("llama")
    layer = model.model.layers[0]
    weight = {"norm": model.model.norm, "keys": layer.self_attn.k_proj, "gate": layer.mlp.gate_proj}[place].weight
    weight.data[0] = torch.nan
    assert not decodes_alike(model, make)


@EITHER
def test_adapters_are_added_in(make_model: Callable[..., Any], make: MakeDecoder) -> None:
    """The adapter sits inside the model, as Burnish trains it; its present weights decode."""
    model = make_model("llama")
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    assert can_decode(model)
    assert decodes_alike(model, make)
    with wrapped.disable_adapter():
        assert decodes_alike(model, make)


@EITHER
@pytest.mark.parametrize("quantization", ["int8", "nf4"])
def test_weights_in_few_bits_decode_with_adapters_beside_them(
    make_model: Callable[..., Any], make: MakeDecoder, quantization: Quantization
) -> None:
    model = make_model("qwen2")
    quantize(model, quantization, torch.float32, "auto")
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config)
    assert decodes_alike(model, make)
    with wrapped.disable_adapter():
        assert decodes_alike(model, make)


@pytest.mark.parametrize("kernels", [pytest.param("required", marks=pytest.mark.compiler), "off"])
def test_fused_and_plain_engines_sample_the_same(
    make_model: Callable[..., Any], tokenizer: Any, kernels: UseKernels
) -> None:
    """Ends at different times, fewer places than samples, prompts of different lengths, one of a single token."""
    model = make_model("qwen3")
    generator = torch.Generator().manual_seed(1)
    requests = [
        RolloutRequest(
            f"p{n}", n, tuple(torch.randint(2, 64, (length,), generator=generator).tolist()), tuple(range(5))
        )
        for n, length in enumerate([1, 7, 30, 7, 2, 19])
    ]
    arguments = {"tokenizer": tokenizer, "eos_token_ids": (1, 9), "pad_token_id": 0, "context_length": 128}
    fused, plain = (
        LocalEngine(model, **arguments, max_batch_rows=11, **way).generate(requests, Sampling(60), seed=0, step=0)
        for way in ({"kernels": kernels}, {"plain": True})
    )
    assert len({len(rollout.response_tokens) for rollout in fused}) > 5
    for one, other in zip(fused, plain, strict=True):
        assert one.response_tokens == other.response_tokens
        assert one.rollout_logprobs == pytest.approx(other.rollout_logprobs, abs=1e-5)


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


def test_a_row_attends_to_its_prompt_and_itself_as_in_one_softmax() -> None:
    """Rows 0 and 2 continue a prompt of 4 tokens, row 1 one of 3, row 3 one of a single token; then row 0 ends and the
    last takes its place, and the prompt of row 1 goes with it."""
    torch.manual_seed(0)
    cache = SharedCache(SHAPE, places=4, dtype=torch.float32)
    prompts = PrefilledPrompts([torch.randn(2, 2, 3, 8)], [torch.randn(2, 2, 3, 8)])
    cache.append([4, 3, 4], prompts, [0, 1, 0])
    cache.append([1], None, [0])
    keys = [[prompts.keys[0][p, :, :n], prompts.values[0][p, :, :n]] for p, n in ((0, 3), (1, 2), (0, 3), (0, 0))]
    positions = torch.tensor([3, 2, 3, 0])
    for step in range(3):
        step_and_compare(cache, keys, positions + step)
    cache.move(torch.tensor([3]), torch.tensor([1]), 3)  # row 1 is done, row 3 takes its place
    keys[1] = keys.pop()
    step_and_compare(cache, keys, torch.tensor([6, 3, 6]))
    cache.append([3], PrefilledPrompts([torch.randn(1, 2, 2, 8)], [torch.zeros(1, 2, 2, 8)]), [0])
    newest = cache._prompt_keys[0][-1, :, :2], cache._prompt_values[0][-1, :, :2]
    keys.append([newest[0].clone(), newest[1].clone()])
    step_and_compare(cache, keys, torch.tensor([7, 4, 7, 2]))  # a row that joins late is at another length


def test_room_grows_for_the_rows_in_use_and_what_is_not_written_counts_nothing() -> None:
    """Fresh memory is full of NaN here. Row 0 and 1 go on past the first 64 columns, two more join at 70."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    try:
        cache = SharedCache(SHAPE, places=4, dtype=torch.float32)
        cache.append([1, 1], None, [0, 1])
        none = torch.zeros(2, 0, 8)
        keys = [[none, none] for _ in range(2)]
        for step in range(70):
            step_and_compare(cache, keys, torch.tensor([step, step]))
        cache.append([1, 1], None, [0, 1])
        keys += [[none, none] for _ in range(2)]
        for step in range(40):
            step_and_compare(cache, keys, torch.tensor([70, 70, 0, 0]) + step)
    finally:
        torch.use_deterministic_algorithms(False)


def step_and_compare(cache: SharedCache, keys: list[list[torch.Tensor]], positions: torch.Tensor) -> None:
    rows = len(positions)
    query, key, value = torch.randn(rows, 4, 8), torch.randn(rows, 2, 8), torch.randn(rows, 2, 8)
    cache.begin(positions)
    found = cache.attend(0, query, key, value)
    for row in range(rows):
        keys[row][0] = torch.cat([keys[row][0], key[row][:, None]], dim=1)
        keys[row][1] = torch.cat([keys[row][1], value[row][:, None]], dim=1)
        all_keys, all_values = (tensor.repeat_interleave(2, dim=0) for tensor in keys[row])
        weights = (query[row][:, None] @ all_keys.transpose(1, 2) * SHAPE.scaling).softmax(-1)
        torch.testing.assert_close(found[row], (weights @ all_values)[:, 0])


def engine(model: Any, kernels: UseKernels) -> LocalEngine:
    arguments = {"tokenizer": None, "eos_token_ids": (1,), "pad_token_id": 0, "context_length": 64}
    return LocalEngine(model, **arguments, max_batch_rows=4, kernels=kernels)


def test_an_engine_without_a_compiler_goes_without_or_refuses(
    make_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_kernels.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert engine(make_model("llama"), "auto")._make_decoder.func is FusedDecoder
    with pytest.raises(KernelError, match="no-such-compiler"):
        engine(make_model("llama"), "required")


@pytest.mark.compiler
def test_kernels_that_are_required_must_fit_the_model(make_model: Callable[..., Any]) -> None:
    assert engine(make_model("llama"), "required")._make_decoder.func is KernelDecoder
    with pytest.raises(RolloutError, match=r"model\.kernels is `required`"):
        engine(make_model("gpt2"), "required")
