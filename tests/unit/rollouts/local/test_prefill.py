import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from burnish.machine.matmul_precision import matmul_precision
from burnish.rollouts.local.prefill import Prefiller

PROMPTS = [tuple(range(1, 41)), tuple(range(41, 77))]
"""Of 40 and 36 tokens, all but the last of which are read: 39 columns, 40 if rounded."""


@pytest.fixture
def model() -> GPT2LMHeadModel:
    """With learned positions, as many as there are columns without rounding."""
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=39, vocab_size=80, eos_token_id=0, bos_token_id=0)
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).eval()


@torch.no_grad()
def test_where_shapes_are_to_repeat_prompts_are_padded_and_keep_their_keys(model: GPT2LMHeadModel) -> None:
    def prefilled() -> list[torch.Tensor]:
        prefiller = Prefiller(model, pad_token_id=0)
        (found,) = prefiller.prefill(PROMPTS, keep=None)
        assert prefiller.take_token_count() == 39 + 35
        assert found.prompts is not None
        return [*found.prompts.keys, *found.prompts.values]

    usual = prefilled()
    with matmul_precision("medium"):
        rounded = prefilled()
    assert {kept.shape[2] for kept in usual} == {39}
    assert {kept.shape[2] for kept in rounded} == {40}
    for before, after in zip(usual, rounded, strict=True):
        for row, length in enumerate((39, 35)):
            found, expected = after[row, :, :length], before[row, :, :length]
            torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)  # medium may be bfloat16's precision
