"""Which layers a trial of a model's code runs: two, and more only where more kinds of layers are."""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from burnish.forward.few_layers import few_layers, telling_layers
from burnish.forward.recomputing import allow_recomputing

LAYERS = 6


@pytest.fixture
def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, num_hidden_layers=LAYERS, **sizes)).eval()


def num_telling(model: Any) -> int:
    with telling_layers(model):
        found = len(model.base_model.layers)
    assert len(model.base_model.layers) == LAYERS
    return found


def test_two_layers_tell_of_layers_that_are_built_alike(llama: Any) -> None:
    assert num_telling(llama) == 2
    for number, weight in enumerate(llama.parameters()):
        nn.init.normal_(weight, std=1.0 + number)  # only their weights differ
    assert num_telling(llama) == 2
    tokens = torch.tensor([[1, 2, 3]])
    with few_layers(llama, 2):
        wanted = llama(tokens).logits
    with telling_layers(llama):
        assert llama(tokens).logits.equal(wanted)
    assert not llama(tokens).logits.equal(wanted)


def test_checkpointed_layers_are_alike(llama: Any) -> None:
    """Each has a function of its own that recomputes it."""
    allow_recomputing(llama)
    assert num_telling(llama) == 2


def own_forward(layer: Any) -> None:
    layer.mlp.forward = lambda states: states


def other_class(layer: Any) -> None:
    class Gate(nn.SiLU):
        __module__ = "torch.nn.modules.activation"

    layer.mlp.act_fn = Gate()


CHANGES: dict[str, Callable[[Any], object]] = {
    "hook": lambda layer: layer.mlp.register_forward_hook(lambda *given: given[2] * 1.01),
    "hook before": lambda layer: layer.register_forward_pre_hook(lambda *_: None),
    "number": lambda layer: setattr(layer.input_layernorm, "variance_epsilon", 1e-3),
    "switch": lambda layer: setattr(layer.self_attn, "is_causal", False),
    "shape": lambda layer: setattr(layer.mlp, "down_proj", nn.Linear(47, 32, bias=False)),
    "bias": lambda layer: setattr(layer.mlp, "down_proj", nn.Linear(48, 32)),
    "type": lambda layer: layer.mlp.double(),
    "frozen": lambda layer: layer.mlp.requires_grad_(False),
    "forward": own_forward,
    "class": other_class,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_of_another_kind_is_among_them(llama: Any, change: str) -> None:
    CHANGES[change](llama.model.layers[3])
    assert num_telling(llama) == 4


def test_code_from_elsewhere_keeps_all_layers(llama: Any) -> None:
    class Places(type(llama.model.layers[0])):
        """Does something else in every layer, which nothing in it shows."""

        def forward(self, states: Any, *given: Any, **named: Any) -> Any:
            return super().forward(states, *given, **named) * (1 + self.self_attn.layer_idx)

    llama.model.layers[0].__class__ = Places
    assert num_telling(llama) == LAYERS


def test_other_architectures_keep_all_layers(llama: Any) -> None:
    llama.config.model_type = "granite"
    assert num_telling(llama) == LAYERS
    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=8, n_layer=3, n_head=2))
    with telling_layers(model):  # which calls them `h`
        assert len(model.base_model.h) == 3


@pytest.mark.parametrize(("layers", "telling"), [(None, 2), ([0, 1], 3), ([4], 5)])
def test_adapters_on_some_layers_make_them_another_kind(llama: Any, layers: list[int] | None, telling: int) -> None:
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], layers_to_transform=layers)
    peft.get_peft_model(llama, config)
    assert num_telling(llama) == telling
