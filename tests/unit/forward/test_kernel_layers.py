"""When layers go through kernels; that they then have the model's numbers stands in test_packing.py."""

import copy
import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from burnish.config.schema_data import LoraConfig, ModelConfig
from burnish.errors import ModelError
from burnish.forward.kernel_layers import own_layers, remade_in_backward, uses_layer_kernels
from burnish.forward.probe import use_layer_kernels, use_packed_rows
from burnish.forward.scoring import ResponseScorer
from burnish.kernels import training
from burnish.kernels.attention import AttentionKernels, attention_kernels
from burnish.kernels.decoding import decode_kernels
from burnish.kernels.training import train_kernels
from burnish.models.loading import load_model
from burnish.models.lora import Adapter


def calls_of(model, batch, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which functions in C a packed pass with gradient calls."""
    called: list[str] = []
    kernels = type(train_kernels(model.dtype))
    before = kernels.call
    monkeypatch.setattr(kernels, "call", lambda self, *given: called.append(given[0]) or before(self, *given))
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
    ResponseScorer(model).score(batch).logprobs_BT.sum().backward()
    return called


@pytest.mark.compiler
def test_a_layer_calls_each_of_them_both_ways(load, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("llama").model
    layers = len(model.model.layers)
    called = calls_of(model, batch, monkeypatch)
    for name, count, forwards in (("normalise", 2, 2), ("rotate", 2, 1), ("gate", 1, 2)):
        assert called.count(f"{name}_backward") == count * layers
        assert called.count(f"{name}_forward") == forwards * count * layers  # norms and the gate are made again


@pytest.mark.compiler
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_what_linear_layers_read_is_not_kept_for_the_backward_pass(lora, load, batch, monkeypatch) -> None:
    """Adapters read it, too."""
    model = load("llama").model
    if lora:
        Adapter(model, LoraConfig(**lora), seed=0)
    read: list[StorageWeakRef] = []
    for layer in model.base_model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).register_forward_pre_hook(
                lambda _, given: read.append(StorageWeakRef(given[0].untyped_storage()))
            )
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
    logprobs = ResponseScorer(model).score(batch).logprobs_BT
    assert read
    assert all(storage.expired() for storage in read)
    logprobs.sum().backward()


@pytest.mark.compiler
def test_checkpointing_goes_through_the_kernels_twice(load, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps less meanwhile: what a layer holds for its backward pass is its input."""
    model = load("llama", gradient_checkpointing=True).model.train()
    called = calls_of(model, batch, monkeypatch)
    assert called.count("gate_forward") == 2 * len(model.model.layers)
    assert called.count("gate_backward") == len(model.model.layers)


@pytest.mark.slow
def test_a_model_goes_when_it_is_dropped(load) -> None:
    """Not only when the garbage collector comes by."""
    model = load("llama").model
    gone = weakref.ref(model.model.layers[0].mlp)
    gc.collect()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.compiler
def test_a_copy_has_layers_of_its_own(load, batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the frozen reference is made: what trains later does not show in it."""
    model = load("llama").model
    twin = copy.deepcopy(model)
    assert uses_layer_kernels(twin)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
    assert ResponseScorer(twin).score(batch).logprobs_BT.isfinite().all()


def test_rows_that_are_not_packed_and_generation_are_the_models_own(load) -> None:
    ours, own = load("llama").model, load("llama", plain=True).model
    assert not uses_layer_kernels(own)
    tokens = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(ours(tokens).logits, own(tokens).logits, atol=1e-6, rtol=1e-6)
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert ours.generate(tokens, **arguments).tolist() == own.generate(tokens, **arguments).tolist()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_kernels.cache_clear()
    train_kernels.cache_clear()
    attention_kernels.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_user_is_told(load) -> None:
    loaded = load("llama")
    assert not uses_layer_kernels(loaded.model)
    told = "training and sampling do not use C kernels, which is slower: CC names 'no-such-compiler'"
    assert loaded.notes[-1].startswith(told)
    assert loaded.kernels == "off"  # nobody tries to build them once more
    assert not any("kernels" in note for note in load("gpt2").notes)
    with pytest.raises(ModelError, match=r"kernels is `required`, .*no-such-compiler.*\n  -> install one"):
        load("llama", kernels="required")
    assert load("llama", kernels="off").notes == load("llama", plain=True).notes


@pytest.mark.compiler
def test_kernels_that_are_required_must_fit_the_model(load, model_folder) -> None:
    assert uses_layer_kernels(load("llama", kernels="required").model)
    with pytest.raises(ModelError, match=r"model\.kernels is `required`, but no C kernel supports this run \(gpt2, "):
        load("gpt2", kernels="required")
    config = ModelConfig(path=str(model_folder("llama")), device="cpu", kernels="required")
    for how in ({"plain": True}, {"head": "score"}):
        with pytest.raises(ModelError, match=r"no C kernel supports this run \(llama, "):
            load_model(config, **how)


@pytest.mark.compiler
@pytest.mark.parametrize("change", ["name", "type", "hook"])
def test_a_model_that_is_built_otherwise_keeps_its_own_layers(load, change: str) -> None:
    """It calls itself a Llama, but what the kernels ask for has another name or type, or gives other numbers."""
    model = load("llama", plain=True).model
    assert use_packed_rows(model)
    norm = model.model.layers[0].input_layernorm
    if change == "name":
        norm.register_forward_hook(lambda *_: None)
        del norm.variance_epsilon
        norm.forward = lambda states: states
    elif change == "type":
        norm.weight.data = norm.weight.data.double()
        norm.forward = lambda states: states * norm.weight.float()
    else:
        model.model.layers[1].mlp.register_forward_hook(lambda *given: given[2] * 1.01)
    assert not use_layer_kernels(model)
    assert not uses_layer_kernels(model)


@pytest.mark.compiler
@pytest.mark.parametrize("what", ["gradient", "long rows"])
def test_the_trial_sees_gradients_and_rows_longer_than_a_block(load, what, monkeypatch) -> None:
    model = load("llama", plain=True).model
    assert use_packed_rows(model)
    if what == "gradient":
        backward = training._Gate.backward
        spoilt = staticmethod(
            lambda ctx, grad: tuple(part if part is None else 1.01 * part for part in backward(ctx, grad))
        )
        monkeypatch.setattr(training._Gate, "backward", spoilt)
    else:
        attend = AttentionKernels.attend

        def short_sighted(self, query, key, value, stretches, scaling):
            """Right for 16 tokens and fewer."""
            output = attend(self, query, key, value, stretches, scaling)
            return output if len(stretches.slots_S) <= 32 else output * 1.01

        monkeypatch.setattr(AttentionKernels, "attend", short_sighted)
    assert not use_layer_kernels(model)
    assert not uses_layer_kernels(model)
    monkeypatch.undo()
    assert use_layer_kernels(model)
    assert use_layer_kernels(model)  # twice is once
    own_layers(model)
    assert not uses_layer_kernels(model)


@pytest.fixture
def made() -> list[StorageWeakRef]:
    """Everything that `doubled` has made."""
    return []


@pytest.fixture
def doubled(made: list[StorageWeakRef]) -> Callable[[Tensor], Tensor]:
    def double(source: Tensor) -> Tensor:
        result = 2.0 * source.detach()
        made.append(StorageWeakRef(result.untyped_storage()))
        return result

    return double


def test_one_result_for_all_who_would_have_kept_it(made, doubled) -> None:
    source, layers = torch.ones(3, 4), [nn.Linear(4, 2, bias=bias) for bias in (True, False)]
    tensor = doubled(source)
    with remade_in_backward(tensor, lambda: doubled(source)):
        outputs = torch.cat([layer(tensor) for layer in layers], dim=1)
    del tensor
    assert made[0].expired()  # nobody keeps it
    outputs.sum().backward()
    assert len(made) == 2
    assert made[1].expired()
    for layer in layers:
        assert layer.weight.grad.tolist() == [[6.0] * 4] * 2  # three rows of 2


def test_a_second_backward_pass_makes_it_again(made, doubled) -> None:
    source, layer = torch.ones(3, 4), nn.Linear(4, 2)
    tensor = doubled(source)
    with remade_in_backward(tensor, lambda: doubled(source)):
        output = layer(tensor).sum()
    output.backward(retain_graph=True)
    output.backward()
    assert len(made) == 3
    assert layer.weight.grad.tolist() == [[12.0] * 4] * 2


def test_other_tensors_are_kept_as_ever(doubled) -> None:
    source = torch.ones(3, 4, requires_grad=True)
    tensor, weight = doubled(source), torch.full((4,), 5.0, requires_grad=True)
    with remade_in_backward(tensor, lambda: doubled(source)):
        (source * weight).sum().backward()
    assert source.grad.tolist() == [[5.0] * 4] * 3
    assert weight.grad.tolist() == [3.0] * 4


def test_a_pass_without_gradient_makes_nothing(made, doubled) -> None:
    source = torch.ones(3, 4)
    tensor = doubled(source)
    with torch.no_grad(), remade_in_backward(tensor, lambda: doubled(source)):
        nn.Linear(4, 2)(tensor)
    assert len(made) == 1
