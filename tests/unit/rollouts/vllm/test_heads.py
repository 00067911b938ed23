"""Wider heads compute what the model computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from burnish.errors import RolloutError
from burnish.models.weights import named_tensors
from burnish.rollouts.vllm.engine import model_config
from burnish.rollouts.vllm.heads import HeadPadding, choose_padding


@pytest.mark.parametrize("padded", [16, 32])
def test_wider_heads_give_the_same_logits(make_model: Callable[..., Any], padded: int) -> None:
    sizes = make_model("llama").config
    sizes.attention_bias = True
    model = LlamaForCausalLM(sizes)
    for layer in model.model.layers:  # biases begin at 0
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.normal_(projection.bias)
    padding = HeadPadding(8, padded)
    config = padding.config(model_config(model) | {"head_dim": 8})
    wide = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    missing = wide.load_state_dict(dict(padding.weights(named_tensors(model))), strict=False)
    assert not missing.unexpected_keys
    assert not missing.missing_keys
    tokens = torch.arange(2, 60).view(2, -1)
    with torch.no_grad():
        assert torch.allclose(wide(tokens).logits, model(tokens).logits, atol=2e-5)


def test_only_what_cannot_be_computed_is_padded(make_model: Callable[..., Any]) -> None:
    config = model_config(make_model("llama"))
    assert choose_padding(config, None) is None
    assert choose_padding(config, [8, 16]) is None
    assert choose_padding(config, [64, 32]) == HeadPadding(8, 32)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2"},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"head_dim": 512},
        {"head_dim": 2},
    ],
)
def test_a_model_that_would_not_stay_the_same_is_refused(
    make_model: Callable[..., Any], change: dict[str, Any]
) -> None:
    config = model_config(make_model("llama")) | change
    with pytest.raises(RolloutError, match="heads of 32, 64 dimensions"):
        choose_padding(config, [32, 64])
