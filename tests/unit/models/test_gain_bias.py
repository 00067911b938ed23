"""Gain and bias of a reward model as parameters of their own: same rewards, other gradients, folded on disk."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from burnish.config.schema_data import LoraConfig, ModelConfig
from burnish.errors import CheckpointError
from burnish.models.optimizers import OptimizerSettings
from burnish.models.reward_learner import ComparedScores, Comparison, RewardLearner
from burnish.models.reward_model import GainBias, Readout, RewardModel, load_reward_model, new_reward_model
from burnish.models.roles import ObjectiveValue

PAIRS = [((3, 4), (5, 6, 2)), ((3,), (7, 2)), ((8, 9, 4), (5, 5, 5, 6))]
COMPARISONS = [Comparison((3, 4), ((5, 6, 2), (5, 5, 2)), 0), Comparison((7,), ((1, 6, 2), (8, 2)), 1)]


@pytest.fixture
def folder(model_folder) -> Path:
    return model_folder("llama")


def fresh(folder: Path, *, apart: bool, lora: LoraConfig | None = None) -> RewardModel:
    model = new_reward_model(ModelConfig(path=str(folder), device="cpu", lora=lora), Readout(), seed=0)
    if apart:
        model.train_gain_and_bias()
    return model


def learner(model: RewardModel) -> RewardLearner:
    return RewardLearner(model, OptimizerSettings(1e-2, 10), tokens_per_microbatch=1000)


def margin_loss(scores: ComparedScores, count: int) -> ObjectiveValue:
    """Not a ranking loss: the bias has a gradient too."""
    first: Tensor = scores.scores_BK[:, 0]
    return ObjectiveValue((first - 1).square().sum() / count, {})


def test_the_gradients_of_gain_and_bias_by_hand() -> None:
    """d(gain x + bias) is x for the gain and 1 for the bias, summed over the scores."""
    scale = GainBias(2.0, 0.5, device=torch.device("cpu"))
    logits = torch.tensor([1.0, -3.0, 4.0])
    rewards = scale(logits)
    assert rewards.tolist() == [2.5, -5.5, 8.5]
    rewards.sum().backward()
    assert (scale.gain.grad, scale.bias.grad) == (torch.tensor(2.0), torch.tensor(3.0))


def test_normalising_moves_gain_and_bias_and_leaves_the_head(folder: Path) -> None:
    apart, within = fresh(folder, apart=True), fresh(folder, apart=False)
    head = apart.head.weight.detach().clone()
    for model in (apart, within):
        model.normalise(model.score(PAIRS), scale=True, measured_on="three")
    assert torch.equal(apart.head.weight, head)
    assert not torch.equal(within.head.weight, head)
    assert apart.score(PAIRS) == pytest.approx(within.score(PAIRS), abs=1e-5)
    assert apart.gain_bias.gain.item() == pytest.approx(within.normalization.gain, rel=1e-5)
    assert apart.gain_bias.bias.item() == pytest.approx(within.normalization.bias, rel=1e-4)


def test_off_the_bias_stays_and_on_both_are_trained(folder: Path) -> None:
    for apart in (True, False):
        model = fresh(folder, apart=apart)
        model.normalise(model.score(PAIRS), scale=True, measured_on="three")
        before = model.gain_bias.folded(model.normalization) if model.gain_bias else model.normalization
        learner(model).update(COMPARISONS, margin_loss)
        after = model.gain_bias.folded(model.normalization) if model.gain_bias else model.normalization
        assert (before == after) is not apart
        if apart:
            # Adam's first step is the learning rate, against the sign of the gradient
            assert abs(after.gain - before.gain) == pytest.approx(1e-2, rel=1e-2)
            assert abs(after.bias - before.bias) == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_on_disk_they_are_folded_into_the_head(folder: Path, tmp_path: Path, lora: LoraConfig | None) -> None:
    model = fresh(folder, apart=True, lora=lora)
    model.normalise(model.score(PAIRS), scale=True, measured_on="three")
    learner(model).update(COMPARISONS, margin_loss)
    model.save(tmp_path)
    again = load_reward_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert again.score(PAIRS) == pytest.approx(model.score(PAIRS), abs=1e-5)
    assert again.normalization.measured_on == "three"


def test_resuming_is_exact_and_needs_the_same_setting(folder: Path, tmp_path: Path) -> None:
    first = learner(fresh(folder, apart=True))
    first.normalise(first.score(PAIRS), scale=True, measured_on="three")
    first.update(COMPARISONS, margin_loss)
    first.model.save(tmp_path)
    state = first.training_state()
    second = learner(fresh(folder, apart=True))
    second.load_weights(tmp_path)
    second.load_training_state(state)
    for one in (first, second):
        one.update(COMPARISONS, margin_loss)
    for (name, ours), (_, theirs) in zip(first.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert first.model.normalization == second.model.normalization
    other = learner(fresh(folder, apart=False))
    with pytest.raises(CheckpointError, match=r"different normalization\.trainable"):
        other.load_training_state(state)


def test_the_heads_spread_is_an_option(folder: Path) -> None:
    config = ModelConfig(path=str(folder), device="cpu")
    plain, zero, wide = (new_reward_model(config, Readout(), seed=0, head_init_std=std) for std in (None, 0.0, 2.0))
    width = plain.head.in_features
    assert zero.score(PAIRS) == [0.0, 0.0, 0.0]
    torch.testing.assert_close(wide.head.weight, plain.head.weight * 2 * (width + 1) ** 0.5)


def test_training_goes_on_from_a_folder_in_the_home_directory(folder: Path, tmp_path: Path, monkeypatch) -> None:
    model = fresh(folder, apart=False)
    model.normalise(model.score(PAIRS), scale=False, measured_on="three")
    model.save(tmp_path / "rm")
    monkeypatch.setenv("HOME", str(tmp_path))
    again = new_reward_model(ModelConfig(path="~/rm", device="cpu"), Readout(), seed=0)
    torch.testing.assert_close(again.score(PAIRS), model.score(PAIRS))
