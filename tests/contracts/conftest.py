"""What policies and critics are held to their promises on."""

from collections.abc import Callable

import pytest
import torch

from burnish.forward.batch import Batch
from burnish.models.characters import character_tokenizer, tiny_llama
from burnish.models.loading import LoadedModel


@pytest.fixture
def new_model() -> Callable[[], LoadedModel]:
    """Makes the same random model of 16 tokens again at every call."""

    def make() -> LoadedModel:
        tokenizer = character_tokenizer("0123456789,:", bos="S", eos="E", pad="P", unk="U")
        model = tiny_llama(vocab_size=16, hidden_size=16, eos_token_id=1, pad_token_id=2)
        return LoadedModel(model, tokenizer, (1,), 2, 128)

    return make


@pytest.fixture
def batch() -> Batch:
    """Four rows of random tokens, responses of 5, 2, 4 and 1 of them; returns and values of 0 for critics."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 2, 4, 1])
    return Batch(
        prompt_tokens=torch.randint(3, 16, (4, 3), generator=generator),
        prompt_lengths=torch.tensor([3, 1, 2, 3]),
        response_tokens=torch.randint(3, 16, (4, 6), generator=generator),
        response_lengths=lengths,
        loss_mask=torch.arange(6) < lengths[:, None],
        group_ids=torch.arange(4),
        values=torch.zeros(4, 6),
        returns=torch.randn(4, 6, generator=generator) + 1,
    )
