"""Rows of a head without a token (Qwen pads to a round number) are never sampled, and have no part in probabilities."""

import sys
from types import ModuleType

import pytest
import torch

from burnish.config.loading import load_run_data
from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.forward.logprobs import HeadTransform, chunked_token_scores, likeliest_tokens, plain_token_scores
from burnish.forward.scoring import ResponseScorer
from burnish.models.characters import tiny_llama
from burnish.models.loading import load_model, sampled_ids
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.rollouts.engine import Sampling
from burnish.rollouts.local.engine import LocalEngine
from burnish.rollouts.vllm.worker import sampled_distribution
from burnish.trainers.rl.batching import build_batch
from burnish.trainers.rl.setup.preflight import check_fit
from burnish.types import RolloutRequest

TOKENS, ROWS = 16, 21


@pytest.fixture
def padded_model(tmp_path, tokenizer):
    """A saved model whose head prefers rows that the tokenizer does not know."""
    model = tiny_llama(vocab_size=ROWS, hidden_size=16, eos_token_id=1, pad_token_id=2, context_length=64)
    head = model.get_output_embeddings().weight.data
    head[TOKENS:] = 3 * head[4]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kept", [-1, 60, 10_000])
@pytest.mark.parametrize("transform", [HeadTransform(), HeadTransform(0.5, 3.0)])
@pytest.mark.parametrize("entropy", [False, True])
def test_scores_and_gradients_are_those_of_the_first_rows(kept, transform, entropy):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(*size, generator=generator) for size in ((7, 5), (ROWS, 5), (ROWS,)))
    leaves = [leaf.requires_grad_() for leaf in (hidden, weight, bias)]
    targets = torch.arange(7) * 2 + 1
    logits = transform(hidden @ weight[:TOKENS].T + bias[:TOKENS])
    expected = plain_token_scores(logits, targets, temperature=0.7, entropy=entropy)
    options = {"temperature": 0.7, "transform": transform, "entropy": entropy, "chunk_elements": 40}
    found = chunked_token_scores(*leaves, targets, **options, kept_elements=kept, vocabulary=TOKENS)

    def gradients(scores):
        loss = sum((part * torch.linspace(-1, 2, 7)).sum() for part in scores if part is not None)
        return torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(gradients(found), gradients(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=0)
    likeliest = likeliest_tokens(hidden, weight, bias, vocabulary=TOKENS)
    assert torch.equal(likeliest, (hidden @ weight[:TOKENS].T + bias[:TOKENS]).argmax(-1))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_such_ids_are_never_sampled_and_the_trainer_agrees(padded_model, plain, greedy):
    loaded = load_model(ModelConfig(path=str(padded_model), device="cpu"), plain=plain)
    assert loaded.vocabulary == TOKENS == sampled_ids(loaded)
    request = RolloutRequest.of("p", 0, (4, 5, 6), tuple(range(20)))
    engine = LocalEngine.of(loaded, max_batch_rows=20)
    rollouts = engine.generate([request], Sampling(12, greedy=greedy), seed=0, step=0)
    assert max(token for rollout in rollouts for token in rollout.response_tokens) < TOKENS
    policy = LocalPolicy(loaded, OptimizerSettings(1e-3, 10))
    batch = build_batch(rollouts, pad_token_id=2, mask_truncated=False)
    scores = policy.logprobs(batch, entropy=True, correct=greedy)
    assert torch.equal(scores.logprobs_BT, policy.reference().logprobs(batch))
    for row, rollout in enumerate(rollouts):
        length = len(rollout.response_tokens)
        sampled = torch.tensor(rollout.rollout_logprobs)
        torch.testing.assert_close(scores.logprobs_BT[row, :length], sampled, atol=1e-4, rtol=0)
        assert scores.correct_BT is None or scores.correct_BT[row, :length].all()
    assert scores.entropy_BT.max() <= torch.tensor(float(TOKENS)).log() + 1e-5


def test_a_head_of_another_form_is_scored_alike(padded_model, monkeypatch):
    loaded = load_model(ModelConfig(path=str(padded_model), device="cpu"))
    request = RolloutRequest.of("p", 0, (4, 5, 6), (0, 1))
    rollouts = LocalEngine.of(loaded, max_batch_rows=2).generate([request], Sampling(9), seed=0, step=0)
    batch = build_batch(rollouts, pad_token_id=2, mask_truncated=False)
    expected = ResponseScorer(loaded.model, vocabulary=TOKENS).score(batch, entropy=True, correct=True)
    monkeypatch.setattr("burnish.forward.scoring.find_head_transform", lambda model: None)
    found = ResponseScorer(loaded.model, vocabulary=TOKENS).score(batch, entropy=True, correct=True)
    torch.testing.assert_close(found.logprobs_BT, expected.logprobs_BT, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy_BT, expected.entropy_BT, atol=1e-5, rtol=0)
    assert torch.equal(found.correct_BT, expected.correct_BT)


def test_an_end_id_that_only_the_config_knows_can_be_sampled(padded_model):
    config = padded_model / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 1', '"eos_token_id": [1, 18]'))
    assert load_model(ModelConfig(path=str(padded_model), device="cpu")).vocabulary == 19


def test_nothing_is_cut_where_every_row_has_a_token(load):
    assert load().vocabulary is None


def test_a_stop_id_that_is_never_sampled_is_refused():
    run = {"model": "m", "data": {"train": "t"}, "rewards": "length", "rollout": {"stop_token_ids": [TOKENS]}}
    config = load_run_data(run).config
    with pytest.raises(ModelError, match="stop_token_ids names 16, which is beyond"):
        check_fit(config, None, TOKENS)
    check_fit(config, None, ROWS)


def test_vllm_rules_them_out_before_it_samples(monkeypatch):
    module = ModuleType("vllm.v1.sample.logits_processor")
    vars(module)["AdapterLogitsProcessor"] = type("Adapter", (), {"apply": lambda self, logits: logits})
    for known in (*map(ModuleType, ("vllm", "vllm.v1", "vllm.v1.sample")), module):
        monkeypatch.setitem(sys.modules, known.__name__, known)
    logits = torch.randn(3, ROWS)
    assert torch.equal(sampled_distribution(None)().apply(logits.clone()), logits)
    processor = sampled_distribution(TOKENS)()
    found = processor.apply(logits.clone())
    assert torch.equal(found[:, :TOKENS], logits[:, :TOKENS])
    assert torch.isneginf(found[:, TOKENS:]).all()
    assert not processor.is_argmax_invariant()
