import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from burnish.forward.logprobs import HeadTransform, plain_token_scores
from burnish.forward.microbatches import position_ids
from burnish.forward.scoring import ResponseScorer, find_head_transform, lay_out, response_mask


def _rows(model, batch):
    """Each response and its logits, row by row without any padding."""
    for row in range(len(batch)):
        prompt = batch.prompt_tokens[row, : batch.prompt_lengths[row]]
        response = batch.response_tokens[row, : batch.response_lengths[row]]
        with torch.no_grad():
            yield response, model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]


def _by_the_definition(model, batch, *, temperature=1.0):
    """From the model's own full logits."""
    logprobs = torch.zeros(batch.response_tokens.shape)
    entropy = torch.zeros_like(logprobs)
    for row, (response, logits) in enumerate(_rows(model, batch)):
        found, spread = plain_token_scores(logits, response, temperature=temperature, entropy=True)
        logprobs[row, : len(response)], entropy[row, : len(response)] = found, spread
    return logprobs, entropy


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("budget", [1, 30, 10_000])
def test_scores_equal_the_definition(load, batch, family, budget):
    model = load(family).model
    scorer = ResponseScorer(model, temperature=0.7)
    assert scorer.is_chunked
    scores = scorer.score_in_microbatches(batch, budget, entropy=True)
    logprobs, entropy = _by_the_definition(model, batch, temperature=0.7)
    torch.testing.assert_close(scores.logprobs_BT, logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.entropy_BT, entropy, atol=1e-5, rtol=0)
    assert not scores.logprobs_BT[~response_mask(batch)].any()


@pytest.mark.parametrize("chunked", [True, False])
def test_correct_marks_the_likeliest_token(load, batch, chunked, monkeypatch):
    model = load().model
    if not chunked:
        monkeypatch.setattr("burnish.forward.scoring.find_head_transform", lambda model: None)
    scorer = ResponseScorer(model)
    correct = scorer.score_in_microbatches(batch, 30, correct=True).correct_BT
    for row, (response, logits) in enumerate(_rows(model, batch)):
        assert correct[row, : len(response)].tolist() == (logits.argmax(-1) == response).tolist()
    assert not correct[~response_mask(batch)].any()


def test_what_stands_in_padding_changes_nothing(load, batch):
    scorer = ResponseScorer(load().model)
    spoiled = dataclasses.replace(batch, response_tokens=batch.response_tokens.masked_fill(~response_mask(batch), 15))
    assert torch.equal(scorer.score(batch).logprobs_BT, scorer.score(spoiled).logprobs_BT)


def test_layout_golden(batch):
    row = dataclasses.replace(
        batch.select([0]),
        prompt_tokens=torch.tensor([[5, 6, 9]]),
        prompt_lengths=torch.tensor([2]),
        response_tokens=torch.tensor([[7, 8, 1, 2]]),
        response_lengths=torch.tensor([3]),
    )
    tokens_BS, mask_BS = lay_out(row)
    assert tokens_BS.tolist() == [[5, 6, 7, 8, 1]]
    assert position_ids(mask_BS).tolist() == [[0, 1, 2, 3, 4]]


def test_empty_prompt_is_refused(batch):
    empty = dataclasses.replace(batch, prompt_lengths=torch.zeros_like(batch.prompt_lengths))
    with pytest.raises(ValueError, match="empty prompt"):
        lay_out(empty)


def test_a_row_as_long_as_the_context(load, make_batch_of):
    batch = make_batch_of(rows=2, prompt_width=6, width=58)
    full = dataclasses.replace(batch, prompt_lengths=torch.tensor([6, 2]), response_lengths=torch.tensor([58, 3]))
    scores = ResponseScorer(load("gpt2").model).score(full)
    assert torch.isfinite(scores.logprobs_BT).all()


TINY = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 1, "pad_token_id": 2, "eos_token_id": 1, "bos_token_id": 0}


@pytest.mark.parametrize(
    ("family", "fields", "transform"),
    [
        ("cohere", {"logit_scale": 0.25}, HeadTransform(scale=0.25)),
        ("granite", {"logits_scaling": 4.0}, HeadTransform(scale=0.25)),
        ("gemma2", {"head_dim": 8, "final_logit_softcapping": 0.05}, HeadTransform(softcap=0.05)),
    ],
)
def test_models_that_transform_their_logits(batch, family, fields, transform):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **TINY, **fields)).eval()
    assert find_head_transform(model) == transform
    expected, _ = _by_the_definition(model, batch, temperature=0.7)
    found = ResponseScorer(model, temperature=0.7).score(batch).logprobs_BT
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_an_unknown_head_falls_back_to_full_logits(load, batch):
    model = load().model
    forward = model.forward

    def shifted(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        outputs.logits = outputs.logits * torch.linspace(0.5, 1.5, 16)
        return outputs

    model.forward = shifted
    scorer = ResponseScorer(model)
    assert not scorer.is_chunked
    expected, _ = _by_the_definition(model, batch)
    torch.testing.assert_close(scorer.score(batch).logprobs_BT, expected, atol=1e-5, rtol=0)
