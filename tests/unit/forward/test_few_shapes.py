from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from burnish.forward.few_shapes import rounded_up, rounds_up
from burnish.forward.matmul_precision import matmul_precision


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (0, 0),
        (1, 1),
        (15, 15),
        (17, 18),
        (64, 64),
        (65, 72),
        (260, 288),
        (316, 320),
        (511, 512),
        (513, 576),
        (2047, 2048),
    ],
)
def test_sizes_by_hand(size: int, rounded: int) -> None:
    assert rounded_up(size) == rounded


@given(st.integers(1, 1 << 20))
def test_little_is_added_and_what_is_rounded_stays(size: int) -> None:
    rounded = rounded_up(size)
    assert size <= rounded <= min(size * 9 / 8, size + 63)
    assert rounded_up(rounded) == rounded


def test_there_are_few_sizes() -> None:
    assert len({rounded_up(size) for size in range(256, 2049)}) == 33


def test_only_products_through_onednn_are_rounded() -> None:
    settings = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 8}
    model = LlamaForCausalLM(LlamaConfig(hidden_size=8, **settings))
    assert not rounds_up(model)
    with matmul_precision("medium"):
        assert rounds_up(model)
        with torch.device("meta"):
            assert not rounds_up(LlamaForCausalLM(LlamaConfig(hidden_size=8, **settings)))
