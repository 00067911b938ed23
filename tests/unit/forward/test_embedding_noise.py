"""Noise on embeddings: the same for a row wherever a pass puts it, bounded, and none without keys."""

import math
from functools import partial

import pytest
import torch
from batches import batch_of
from transformers import LlamaForCausalLM

from burnish.errors import ModelError
from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.forward.embedding_noise import NoisyTrunkRunner, in_slots, row_noise
from burnish.forward.packing import Packing
from burnish.forward.scoring import ResponseScorer

ALPHA = 5.0


def keyed(batch: Batch) -> Batch:
    return batch.with_noise(torch.arange(len(batch)) - 3)


def gradients(model, batch: Batch, **how) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of a batch, and the gradient of their sum for the embedding."""
    model.zero_grad()
    scores = ResponseScorer(model, runner=partial(NoisyTrunkRunner, alpha=ALPHA), **how).score(batch).logprobs_BT
    scores.sum().backward()
    return scores.detach(), model.get_input_embeddings().weight.grad.clone()


def test_noise_is_within_its_bounds_and_a_function_of_the_key() -> None:
    noise = row_noise(-7, 30, 20, ALPHA)
    most = ALPHA / math.sqrt(30 * 20)
    assert 0.99 * most < noise.abs().max() <= most
    assert abs(noise.mean()) < 0.05 * most
    assert torch.equal(noise, row_noise(-7, 30, 20, ALPHA))
    assert not torch.equal(noise, row_noise(-8, 30, 20, ALPHA))


def test_noise_in_slots_by_hand() -> None:
    """Rows of 2 + 3 and 1 + 1 tokens; the last token of each is in no slot."""
    batch = batch_of([[4, 5], [4]], [[6, 7, 8], [9]])
    rows = [torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]), torch.tensor([[6.0], [7.0]])]
    assert in_slots(Packing.of(keyed(batch).host), rows)[0, :, 0].tolist() == [1, 2, 6, 3, 4]


@pytest.mark.slow_cases("gpt2", "llama")
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_packed_padded_and_single_rows_have_the_same_noise(load, batch, family, monkeypatch) -> None:
    """Also rows with one prompt, which they do not share."""
    batch = keyed(batch.replace(prompt_tokens=batch.prompt_tokens[:1].expand(len(batch), -1)))
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf)
    loaded, plain = load(family), load(family, plain=True)
    assert packs_rows(loaded.model)
    found, gradient = gradients(loaded.model, batch)
    padded, yardstick = gradients(plain.model, batch, plain=True)
    torch.testing.assert_close(found, padded, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, yardstick, atol=1e-5, rtol=1e-4)
    alone = [gradients(plain.model, batch.select([row]), plain=True)[0] for row in range(len(batch))]
    for row, scores in enumerate(alone):
        torch.testing.assert_close(scores[0], padded[row, : scores.shape[1]], atol=1e-5, rtol=0)


def test_without_keys_there_is_no_noise(load, batch) -> None:
    model = load().model
    noisy = ResponseScorer(model, runner=partial(NoisyTrunkRunner, alpha=ALPHA))
    assert torch.equal(noisy.score(batch).logprobs_BT, ResponseScorer(model).score(batch).logprobs_BT)
    assert not torch.equal(noisy.score(keyed(batch)).logprobs_BT, noisy.score(batch).logprobs_BT)
    assert not model.get_input_embeddings()._forward_hooks


def test_the_noise_of_a_llama_is_what_its_layers_read(load, batch) -> None:
    """The definition: embeddings with the noise added, handed to the model itself."""
    model: LlamaForCausalLM = load(plain=True).model
    row = keyed(batch).select([4])
    tokens = torch.cat(
        [row.prompt_tokens[0, : row.prompt_lengths[0]], row.response_tokens[0, : row.response_lengths[0]]]
    )
    embedded = model.get_input_embeddings()(tokens)
    logits = model(inputs_embeds=(embedded + row_noise(1, len(tokens), embedded.shape[1], ALPHA))[None]).logits[0]
    expected = logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0][int(row.prompt_lengths[0]) - 1 :]
    found = ResponseScorer(model, plain=True, runner=partial(NoisyTrunkRunner, alpha=ALPHA)).score(row).logprobs_BT[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_model_that_does_not_look_up_its_input_is_refused(load, batch, monkeypatch) -> None:
    model = load().model
    other = torch.nn.Embedding(4, 4)
    monkeypatch.setattr(type(model.base_model), "get_input_embeddings", lambda self: other)
    with pytest.raises(ModelError, match="remove neftune_alpha"):
        ResponseScorer(model, runner=partial(NoisyTrunkRunner, alpha=ALPHA), plain=True).score(keyed(batch))
