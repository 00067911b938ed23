import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.forward.scoring import kept_tokens
from burnish.machine.matmul_precision import matmul_precision, rounded_down, rounded_up, rounds_up

BY_HAND = {0: 0, 1: 1, 15: 15, 17: 18, 64: 64, 65: 72, 260: 288, 316: 320, 511: 512, 513: 576, 2047: 2048}


@pytest.mark.parametrize(("size", "rounded"), BY_HAND.items())
def test_sizes_by_hand(size: int, rounded: int) -> None:
    assert rounded_up(size) == rounded


@pytest.mark.slow
@given(st.integers(1, 1 << 20))
def test_little_is_added_and_what_is_rounded_stays(size: int) -> None:
    rounded = rounded_up(size)
    assert size <= rounded <= min(size * 9 / 8, size + 63)
    assert rounded_up(rounded) == rounded


@given(st.integers(0, 1 << 20))
def test_rounded_down_is_the_largest_size_that_stays(size: int) -> None:
    down = rounded_down(size)
    assert down <= size < rounded_up(down + 1)
    assert rounded_up(down) == down


def build(vocabulary: int) -> LlamaForCausalLM:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes))


def test_what_is_kept_of_logits_is_a_rounded_size() -> None:
    """64 million logits of a vocabulary of 151,936 are those of 441 tokens, and of 32,000 those of 2,097."""
    with torch.device("meta"):
        assert [kept_tokens(build(vocabulary)) for vocabulary in (151_936, 32_000)] == [441, 2_097]
    assert [rounded_down(size) for size in (441, 2_097)] == [416, 2_048]


def test_there_are_few_sizes() -> None:
    assert len({rounded_up(size) for size in range(256, 2049)}) == 33


def test_only_products_through_onednn_are_rounded() -> None:
    model = build(8)
    assert not rounds_up(model)
    with matmul_precision("medium"):
        assert rounds_up(model)
        with torch.device("meta"):
            assert not rounds_up(build(8))
