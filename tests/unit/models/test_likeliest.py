"""Which tokens are the model's own first choice: the count behind held-out token accuracy."""

from __future__ import annotations

import torch

from burnish.forward.logprobs import likeliest_tokens


def test_likeliest_tokens_in_chunks_are_the_argmax_of_the_full_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(37, 8, generator=generator), torch.randn(50, 8, generator=generator)
    bias = torch.randn(50, generator=generator)
    expected = (hidden @ weight.T + bias).argmax(-1)
    for chunk_elements in (1, 120, 1 << 20):
        assert torch.equal(likeliest_tokens(hidden, weight, bias, chunk_elements=chunk_elements), expected)


def test_no_position_gives_no_token() -> None:
    assert likeliest_tokens(torch.zeros(0, 4), torch.zeros(5, 4), None).shape == (0,)
