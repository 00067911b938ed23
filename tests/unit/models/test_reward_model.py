"""The reward model: where it reads, how its head begins, what it saves, and that cuts and padding change nothing."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError
from torch import nn
from transformers import AutoModelForSequenceClassification

from burnish.config.schema_data import LoraConfig, ModelConfig
from burnish.errors import DivergenceError, ModelError
from burnish.forward.microbatches import position_ids
from burnish.forward.row_rules import RowRules
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reward_learner import ComparedScores, Comparison, RewardLearner
from burnish.models.reward_model import (
    REWARD_FILE,
    Normalization,
    Readout,
    RewardModel,
    find_reward_file,
    init_score_head,
    lay_out_pairs,
    load_reward_model,
    new_reward_model,
    read_reward_file,
    score_head,
)
from burnish.models.roles import ObjectiveValue

PAIRS = [((3, 4), (5, 6, 2)), ((3,), (7, 2)), ((8, 9, 4), (5, 5, 5, 6))]


@pytest.fixture(scope="module")
def llama(save_tiny_llama: Callable[..., Path]) -> Path:
    return save_tiny_llama("0123456789")


def new(folder: Path, readout: Readout | None = None, **model: object) -> RewardModel:
    return new_reward_model(ModelConfig(path=str(folder), device="cpu", **model), readout or Readout(), seed=0)  # type: ignore[arg-type]


def test_layout_reads_where_it_is_told() -> None:
    def read(readout: Readout) -> list[int]:
        return lay_out_pairs(PAIRS, readout, pad_token_id=0, eos_token_ids=(2, 6))[2].tolist()

    assert read(Readout("last")) == [4, 2, 6]
    assert read(Readout("eos")) == [3, 2, 6]  # first end in 5 6 2 is the 6
    assert read(Readout("last_position", 5)) == [6, 5, 7]
    tokens_BS, mask_BS, _ = lay_out_pairs(PAIRS[:1], Readout("last_position", 5), pad_token_id=0, eos_token_ids=())
    assert tokens_BS.tolist() == [[3, 4, 5, 6, 2, 0, 0]]
    assert mask_BS.tolist() == [[1, 1, 1, 1, 1, 0, 0]]
    assert position_ids(mask_BS).tolist() == [[0, 1, 2, 3, 4, 5, 5]]
    with pytest.raises(ModelError, match="4 tokens, but the reward model scores at position 3"):
        read(Readout("last_position", 3))
    with pytest.raises(ValueError, match="empty response"):
        lay_out_pairs([((1,), ())], Readout(), pad_token_id=0, eos_token_ids=())


@pytest.mark.parametrize("readout", [Readout("last"), Readout("eos"), Readout("last_position", 6)])
def test_scores_depend_on_their_own_row_only(llama: Path, readout: Readout) -> None:
    model = new(llama, readout)
    together = model.score(PAIRS)
    alone = [model.score([pair])[0] for pair in PAIRS]
    cut = model.score(PAIRS, tokens_per_microbatch=8)
    assert together == pytest.approx(alone, abs=1e-6)
    assert together == pytest.approx(cut, abs=1e-6)
    assert len(set(together)) == 3


def test_a_padding_id_that_is_the_end_of_sequence_changes_nothing(llama: Path) -> None:
    model = new(llama)
    before = model.score(PAIRS)
    model.loaded = replace(model.loaded, eos_token_ids=(2,), pad_token_id=2)
    assert model.score(PAIRS) == pytest.approx(before, abs=1e-6)


def test_the_head_begins_as_in_2019() -> None:
    head = nn.Linear(4095, 1)
    init_score_head(head, seed=0)
    assert float(head.weight.detach().std()) == pytest.approx(1 / 64, rel=0.05)  # 1 / sqrt(4096)
    assert head.bias.detach().tolist() == [0.0]
    other = nn.Linear(4095, 1)
    init_score_head(other, seed=0)
    assert torch.equal(head.weight, other.weight)


def test_normalisation_gives_mean_0_and_spread_1_and_survives_saving(llama: Path, tmp_path: Path) -> None:
    model = new(llama)
    raw = model.score(PAIRS)
    model.normalise(raw, scale=True, measured_on="three")
    scores = torch.tensor(model.score(PAIRS))
    assert float(scores.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scores.std(correction=0)) == pytest.approx(1, abs=1e-5)
    mean, spread = sum(raw) / 3, float(torch.tensor(raw).std(correction=0))
    assert model.normalization.gain == pytest.approx(1 / spread, rel=1e-5)
    assert model.normalization.bias == pytest.approx(-mean / spread, rel=1e-4)
    model.normalise([1.0, 2.0], scale=False, measured_on="two")
    assert float(torch.tensor(model.score(PAIRS)).mean()) == pytest.approx(-1.5, abs=1e-5)
    model.save(tmp_path)
    again = load_reward_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert again.score(PAIRS) == model.score(PAIRS)
    assert again.normalization == model.normalization


def test_equal_rewards_have_no_scale(llama: Path) -> None:
    with pytest.raises(ModelError, match="the same reward"):
        new(llama).normalise([2.0, 2.0], scale=True, measured_on="")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_transformers_gives_the_same_logits(family: str, model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    pairs = [((3, 4), (5, 6, 1)), ((3,), (7, 1)), ((8, 9, 4), (5, 5, 5, 6))]  # without the id of padding
    model = new(model_folder(family))
    model.normalise(model.score(pairs), scale=True, measured_on="x")
    model.save(tmp_path / "rm")
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    assert other.config.num_labels == 1
    tokens_BS, mask_BS, _ = lay_out_pairs(pairs, Readout(), pad_token_id=model.loaded.pad_token_id, eos_token_ids=())
    with torch.no_grad():
        logits = other(tokens_BS, attention_mask=mask_BS).logits[:, 0]
    expected = [score - model.normalization.bias for score in model.score(pairs)]
    assert logits.tolist() == pytest.approx(expected, abs=1e-5)


def test_lora_trains_adapters_and_head_and_saves_a_plain_classifier(llama: Path, tmp_path: Path) -> None:
    model = new(llama, lora=LoraConfig(rank=2, alpha=4.0))
    trained = {name for name, p in model.loaded.model.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name == "score.weight" for name in trained)
    assert "score.weight" in trained
    learner = RewardLearner(model, SETTINGS, tokens_per_microbatch=100)
    before = model.score(PAIRS)
    for _ in range(3):
        learner.update(COMPARISONS, pull_apart)
    assert model.score(PAIRS) != before
    model.save(tmp_path)
    again = load_reward_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert again.score(PAIRS) == pytest.approx(model.score(PAIRS), abs=1e-5)
    fresh = RewardLearner(new(llama, lora=LoraConfig(rank=2, alpha=4.0)), SETTINGS, tokens_per_microbatch=100)
    fresh.load_weights(tmp_path)
    assert fresh.score(PAIRS) == model.score(PAIRS)


SETTINGS = OptimizerSettings(learning_rate=1e-2, total_steps=10)
COMPARISONS = [
    Comparison((3, 4), ((5, 6, 2), (7, 2)), 0),
    Comparison((3,), ((7, 7, 7, 2), (5, 2)), 1),
    Comparison((9, 9), ((4, 2), (6, 6, 2), (8, 2)), 2),
]


def pull_apart(compared: ComparedScores, count: int) -> ObjectiveValue:
    """Cross-entropy on the best candidate, written out."""
    scores = compared.scores_BK.masked_fill(~compared.mask_BK, -math.inf)
    loss = -torch.log_softmax(scores, dim=1).gather(1, compared.best_B[:, None]).sum() / count
    return ObjectiveValue(loss, {})


def test_a_step_is_the_same_however_it_is_cut(llama: Path) -> None:
    weights = []
    for budget in (10_000, 12):
        learner = RewardLearner(new(llama), SETTINGS, tokens_per_microbatch=budget)
        learner.update(COMPARISONS, pull_apart)
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.loaded.model.parameters()]))
    # a thousandth of the step: Adam divides each gradient by its own size, the rounding of the smallest included
    torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=0)


def test_a_loss_that_is_not_finite_leaves_the_weights(llama: Path) -> None:
    learner = RewardLearner(new(llama), SETTINGS, tokens_per_microbatch=100)
    before = learner.score(PAIRS)
    with pytest.raises(DivergenceError, match="loss is nan"):
        learner.update(COMPARISONS, lambda compared, count: ObjectiveValue(compared.scores_BK.sum() * math.nan, {}))
    assert learner.score(PAIRS) == before


def test_what_is_no_reward_model_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a reward model: it is a LlamaForCausalLM\n.*burnish rm"):
        load_reward_model(ModelConfig(path=str(llama), device="cpu"))
    AutoModelForSequenceClassification.from_pretrained(llama, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="classifies into 3 labels"):
        load_reward_model(ModelConfig(path=str(tmp_path), device="cpu"))
    with pytest.raises(ModelError, match="does not exist"):
        load_reward_model(ModelConfig(path=str(tmp_path / "nothing"), device="cpu"))


def test_the_head_is_found_by_its_shape(llama: Path) -> None:
    name, head = score_head(new(llama).loaded.model)
    assert (name, head.out_features) == ("score", 1)
    with pytest.raises(ModelError, match="0 linear heads"):
        score_head(AutoModelForSequenceClassification.from_pretrained(llama, num_labels=2))


def test_batches_that_need_several_passes_are_refused_with_slices(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes refuse them alike, before any has begun a pass."""
    model = new(llama)
    pairs = [((3, 4), (5,)), ((3, 4), (5, 6))]
    monkeypatch.setattr(model, "_rules", RowRules("equal"))
    model.check_common([pairs])  # one process makes two passes
    monkeypatch.setattr(model, "shared", object())
    model.check_common([pairs[:1], pairs[1:]])
    with pytest.raises(ModelError, match=r"a LlamaForSequenceClassification, .* cluster\.sharding: full cannot make"):
        model.check_common([pairs])


def test_the_reward_file_of_a_model_on_the_hub_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"gain": 2.0, "bias": -1.5, "measured_on": "x", "score_at": "last", "response_length": None}
    (tmp_path / REWARD_FILE).write_text(json.dumps(fields))
    download = Mock(return_value=str(tmp_path / REWARD_FILE))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = read_reward_file(find_reward_file("someone/reward-model", "v2"))[0]
    assert (found.gain, found.bias) == (2.0, -1.5)
    download.assert_called_once_with("someone/reward-model", REWARD_FILE, revision="v2")


def test_what_the_hub_says_of_a_shift_is_known_from_before_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.example/"))
    known = huggingface_hub._CACHED_NO_EXIST
    for error, cached in (
        (RemoteEntryNotFoundError("no such file", response=answer), None),
        (LocalEntryNotFoundError("offline"), known),
    ):
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=error))
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", Mock(return_value=cached))
        assert read_reward_file(find_reward_file("someone/reward-model", None)) == (Normalization(), Readout())
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", Mock(return_value=None))
    with pytest.raises(ModelError, match="it is unknown whether the reward model 'someone/reward-model' has a"):
        find_reward_file("someone/reward-model", None)
