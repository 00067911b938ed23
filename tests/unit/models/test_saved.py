"""Checkpoints as other programs see them: where generation ends, and whether transformers loads the same model."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer

from burnish.config.schema_data import LoraConfig, ModelConfig
from burnish.data.sft import SftExample, SftSet
from burnish.models import saved
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.saved import SavedPolicy
from burnish.models.tokenizers import load_tokenizer
from burnish.trainers.sft import response_ends


def _saved(loaded, further=(), *, lora=None):
    policy = LocalPolicy(loaded, OptimizerSettings(1e-2, 10), temperature=0.7, lora=lora)
    return SavedPolicy(ModelConfig(path="m"), loaded, policy, further, 0.7)


@pytest.mark.parametrize(
    ("before", "further", "after"),
    [
        ({"eos_token_id": 0, "top_k": 3}, (), {"eos_token_id": [0, 1], "top_k": 3}),
        ({"eos_token_id": [0, 1]}, (7, 1), {"eos_token_id": [0, 1, 7]}),
        ({}, (), {"eos_token_id": 1}),
        (None, (5,), {"eos_token_id": [1, 5]}),
        ({"eos_token_id": 1}, (), None),
    ],
)
def test_generation_ends_at_every_id_at_which_responses_ended(load, tmp_path, before, further, after):
    """A file that names them all is left as it is, byte for byte."""
    file = tmp_path / "generation_config.json"
    if before is not None:
        file.write_text(json.dumps(before))
    _saved(load(), further).write_ends(tmp_path)
    assert json.loads(file.read_text()) == after if after else file.read_text() == json.dumps(before)


def test_the_ends_of_supervised_responses_are_the_control_tokens_that_end_them():
    tokenizer = SimpleNamespace(added_tokens_decoder={1: "<end>", 2: "<call>", 9: "<sep>"})
    rows = [SftExample("a", (5, 9, 6, 1), (False, True, True, True))] * 99
    cut, words = SftExample("b", (5, 2, 7), (False, True, False)), SftExample("c", (5, 6), (False, True))
    last = SftSet(examples=(*rows, cut, *[words] * 50), source_sizes=(), weights=()).last_tokens()
    assert response_ends(last, tokenizer) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_saved_policy_is_the_one_in_training(load, tmp_path, family, lora):
    policy = _saved(load(family), lora=lora)
    if lora is not None:
        for _, weight in policy.policy.trainable_parameters():
            torch.nn.init.normal_(weight, std=0.3)
    policy.policy.save_weights(tmp_path)
    if family == "qwen2" and type(AutoTokenizer.from_pretrained(tmp_path)) is not type(policy.loaded.tokenizer):
        assert "AutoTokenizer reads the tokenizer" in policy.problem(tmp_path)
        assert load_tokenizer(ModelConfig(path=str(tmp_path))).encode("1 é") == policy.loaded.tokenizer.encode("1 é")
    else:
        assert policy.problem(tmp_path) is None


def test_another_model_or_none_is_said(load, tmp_path):
    policy = _saved(load())
    policy.policy.save_weights(tmp_path)
    head = policy.loaded.model.get_output_embeddings().weight.data
    head.mul_(1.2)
    assert "is not the model that is trained" in policy.problem(tmp_path)
    head.fill_(torch.nan)
    assert "differ by nan" in policy.problem(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "transformers cannot load" in policy.problem(tmp_path)


def test_a_model_without_room_is_not_loaded_twice(load, tmp_path, monkeypatch):
    policy = _saved(load())
    policy.policy.save_weights(tmp_path)
    monkeypatch.setattr(saved, "free_memory", lambda: 1000)
    assert "was not loaded again to compare it: its files have" in policy.problem(tmp_path)
