"""The embedding's gradient, added in place, is PyTorch's own."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.forward.gathering import embedding_gradient_in_place

TOKENS = torch.tensor([[3, 5, 3, 0], [7, 3, 0, 0]])


def new() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=11, pad_token_id=0, tie_word_embeddings=False))


def gradient(model: LlamaForCausalLM, in_place: bool, passes: int = 1) -> Tensor:
    for _ in range(passes):
        with embedding_gradient_in_place(model) if in_place else nullcontext():
            logits = model(TOKENS).logits
        logits.square().sum().backward()
    return model.get_input_embeddings().weight.grad


@pytest.mark.parametrize("passes", [1, 3])
def test_it_is_the_gradient_of_the_ordinary_pass(passes: int) -> None:
    """Token 3 stands there three times; 0 is padding, whose embedding does not train."""
    found, wanted = gradient(new(), True, passes), gradient(new(), False, passes)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert found[3].abs().max() > 0
    assert found[0].abs().max() == 0


def test_no_buffer_of_the_whole_vocabulary_is_made_for_a_second_pass() -> None:
    model = new()
    before = gradient(model, True)
    assert gradient(model, True) is before


def test_tied_weights_get_both_parts() -> None:
    found, wanted = new(), new()
    for model in (found, wanted):
        model.lm_head.weight = model.get_input_embeddings().weight
    torch.testing.assert_close(gradient(found, True), gradient(wanted, False), rtol=1e-5, atol=1e-6)


def test_without_gradients_and_outside_nothing_changes() -> None:
    model = new()
    with torch.no_grad(), embedding_gradient_in_place(model):
        model(TOKENS)
    assert not model.get_input_embeddings()._forward_hooks
    with embedding_gradient_in_place(model):
        pass
    assert not model.get_input_embeddings()._forward_hooks


@pytest.mark.parametrize("kind", ["frozen", "sparse", "hooked", "another class"])
def test_embeddings_that_are_not_plain_keep_their_own_pass(kind: str) -> None:
    model = new()
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    if kind == "frozen":
        embedding.weight.requires_grad_(False)
    elif kind == "sparse":
        embedding.sparse = True
    elif kind == "hooked":
        embedding.weight.register_hook(lambda gradient: gradient * 2)
    else:
        scaled = type("Scaled", (nn.Embedding,), {})
        model.set_input_embeddings(scaled(11, 8))
    with embedding_gradient_in_place(model):
        assert not model.get_input_embeddings()._forward_hooks
