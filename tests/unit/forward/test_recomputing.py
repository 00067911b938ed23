"""Gradient checkpointing: activations are recomputed, and nothing is left to chance."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.errors import ModelError
from burnish.forward.recomputing import recomputing
from burnish.forward.scoring import ResponseScorer
from burnish.models.loading import prepare_for_training

SIZES = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 2}
MLP = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 2, "max_position_embeddings": 64}
STOCHASTIC = {
    "dropped layers": ("opt", SIZES | {"ffn_dim": 24, "word_embed_proj_dim": 16, "layerdrop": 0.5, "dropout": 0.5}),
    "router jitter": ("mixtral", MLP | {"num_local_experts": 4, "router_jitter_noise": 0.5}),
    "inputs of experts jittered": ("phimoe", MLP | {"num_local_experts": 4, "input_jitter_noise": 0.5}),
    "attention dropout": ("qwen2", MLP | {"attention_dropout": 0.5}),
    "residual dropout": ("phi", MLP | {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5}),
    "activation dropout": ("biogpt", MLP | {"activation_dropout": 0.5, "layerdrop": 0.5}),
}


def build(kind: str) -> Any:
    model_type, settings = STOCHASTIC[kind]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings)).train()


def passes(scorer: ResponseScorer, batch: Any, *, on: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of two passes as in an update, the second with a backward pass."""
    model = scorer.model
    with recomputing(model, on=on):
        first = scorer.score(batch).logprobs_BT
        second = scorer.score(batch).logprobs_BT
        second.sum().backward()
    assert not any(module.training for module in model.modules())
    return first.detach(), second.detach()


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_every_stochastic_part_is_off_in_training_passes(kind: str, batch: Any) -> None:
    plain, checkpointed = build(kind), build(kind)
    prepare_for_training(plain)
    prepare_for_training(checkpointed, gradient_checkpointing=True)
    expected, again = passes(ResponseScorer(plain), batch, on=False)
    first, second = passes(ResponseScorer(checkpointed), batch, on=True)
    assert all(torch.equal(found, expected) for found in (again, first, second))
    for (name, own), other in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
        assert own.grad is None or torch.allclose(own.grad, other.grad, atol=1e-7, rtol=1e-5), name


def test_activations_are_recomputed_in_the_backward_pass_of_a_copy_too(batch: Any) -> None:
    model = build("attention dropout")
    prepare_for_training(model, gradient_checkpointing=True)
    for own in (model, copy.deepcopy(model)):
        scorer, calls = ResponseScorer(own), []
        layer = own.base_model.layers[0]
        layer.mlp.register_forward_pre_hook(lambda *_, calls=calls, layer=layer: calls.append(layer.training))
        passes(scorer, batch, on=True)
        assert calls == [False] * 3  # two passes, and one of them once more
        calls.clear()
        passes(scorer, batch, on=False)
        assert len(calls) == 2


def test_models_without_layers_to_checkpoint_are_refused() -> None:
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("openai-gpt", vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    )
    with pytest.raises(ModelError, match="checkpoint gradients"):
        prepare_for_training(model, gradient_checkpointing=True)
