"""Critics on real architectures: where values are read, and what a critic may start from."""

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.models.characters import character_tokenizer
from burnish.models.critic import SeparateCritic
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.reward_model import Readout, new_reward_model
from burnish.models.roles import ObjectiveValue

SETTINGS = OptimizerSettings(1e-2, 10)


def squared_error(values_BT, part, denominators):
    error = torch.where(part.loss_mask, values_BT - part.returns, 0.0).square().sum()
    return ObjectiveValue(error / denominators.num_tokens, {})


def critic_from(folder, policy):
    return SeparateCritic.from_folder(str(folder), policy, SETTINGS, field="critic.init")


@pytest.fixture
def classifier_folder(model_folder, tokenizer, tmp_path):
    """A sequence classifier of the family, with a read-out that is not 0."""

    def save(family, *, embeddings=None, words=tokenizer):
        torch.manual_seed(3)
        model = AutoModelForSequenceClassification.from_pretrained(model_folder(family), num_labels=1, pad_token_id=2)
        if embeddings is not None:
            model.resize_token_embeddings(embeddings)
        with torch.no_grad():
            model.score.weight.normal_()
        model.save_pretrained(tmp_path / family)
        words.save_pretrained(tmp_path / family)
        return tmp_path / family

    return save


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_critic_from_a_classifier_gives_its_scores(load, batch, classifier_folder, family):
    """The value before response token t is the classifier's score of the prompt and the first t tokens."""
    folder = classifier_folder(family)
    critic = critic_from(folder, load(family))
    values = critic.values(batch)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    row = 0
    prompt = batch.prompt_tokens[row, : batch.prompt_lengths[row]]
    for t in range(4):
        tokens = torch.cat([prompt, batch.response_tokens[row, :t]])[None]
        with torch.no_grad():
            hidden = model.base_model(tokens)[0][0, -1]
            score = model.score(hidden)
        assert values[row, t].item() == pytest.approx(score.item(), abs=1e-5)


def test_a_critic_from_a_normalised_reward_model_gives_its_rewards(load, batch, model_folder, tmp_path):
    """Gain and bias of the normalisation belong to the reward that the critic begins with, as the read-out does."""
    model = new_reward_model(ModelConfig(path=str(model_folder("llama")), device="cpu"), Readout(), seed=0)
    model.normalise([2.0, 3.5, 4.0], scale=True, measured_on="three")
    model.save(tmp_path)
    values = critic_from(tmp_path, load()).values(batch)
    prompt = batch.prompt_tokens[0, : batch.prompt_lengths[0]].tolist()
    response = batch.response_tokens[0].tolist()
    expected = model.score([(prompt, response[:t]) for t in range(1, 9)])
    assert values[0, 1:9].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_language_model_is_no_reward_model(load, model_folder):
    with pytest.raises(ModelError, match="not a reward model"):
        critic_from(model_folder("llama"), load())


def test_another_tokenizer_is_refused_though_it_is_as_large(load, classifier_folder, model_folder):
    """Same number of tokens, same embeddings, but 4 and 5 have changed places."""
    other = character_tokenizer("1023456789,:", bos="S", eos="E", pad="P", unk="U")
    folder = classifier_folder("llama", words=other)
    with pytest.raises(ModelError, match=r"critic\.init .*another tokenizer \(16 tokens\)") as caught:
        critic_from(folder, load())
    assert all(str(name) in str(caught.value) for name in (folder, model_folder("llama")))
    assert "'0' is id 4 here and id 5 there" in str(caught.value)


@pytest.mark.slow
def test_the_critic_may_know_more_tokens_but_not_fewer(load, classifier_folder):
    larger = character_tokenizer("0123456789,:xyz", bos="S", eos="E", pad="P", unk="U")
    critic_from(classifier_folder("llama", embeddings=20, words=larger), load())
    smaller = character_tokenizer("0123456789,", bos="S", eos="E", pad="P", unk="U")
    with pytest.raises(ModelError, match="':' is id 15 here and no token there"):
        critic_from(classifier_folder("llama", words=smaller), load())


def test_embeddings_that_only_the_policy_has_are_refused(load, classifier_folder):
    """Vocabularies are often padded: the sampler can pick an id that no token has, and the critic has to read it."""
    policy = load()
    policy.model.resize_token_embeddings(20)
    with pytest.raises(ModelError, match=r"has 16 embeddings, but the policy '.*' has 20"):
        critic_from(classifier_folder("llama"), policy)


def test_a_folder_that_is_not_there_is_named(load):
    with pytest.raises(ModelError, match=r"critic\.init './nowhere' does not exist"):
        critic_from("./nowhere", load())


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_critic_of_its_own_shares_no_weight_and_saves_an_ordinary_model(load, family, tmp_path):
    loaded = load(family)
    critic = SeparateCritic.copy_of(loaded, SETTINGS)
    ours = {parameter.data_ptr() for parameter in critic.trunk.parameters()}
    assert not ours & {parameter.data_ptr() for parameter in loaded.model.parameters()}
    critic.save_weights(tmp_path)
    saved = AutoModel.from_pretrained(tmp_path)
    for name, parameter in saved.named_parameters():
        assert torch.equal(parameter, critic.trunk.get_parameter(name))


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "full logits"])
def test_an_update_of_the_policy_sees_the_values_of_a_shared_trunk(load, batch, chunked, monkeypatch):
    if not chunked:
        monkeypatch.setattr("burnish.forward.scoring.find_head_transform", lambda model: None)
    policy = LocalPolicy(load(), SETTINGS)
    critic = policy.add_value_head(SETTINGS)
    with torch.no_grad():
        critic.head.weight.normal_()
    expected = critic.values(batch)
    seen = policy._scorer.score(batch, value_head=critic.head)
    torch.testing.assert_close(seen.values_BT, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(seen.logprobs_BT, policy.logprobs(batch).logprobs_BT, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_bfloat16_and_gradient_checkpointing(load, batch, kind):
    loaded = load(dtype="bfloat16", gradient_checkpointing=True)
    filled = batch.replace(values=torch.zeros_like(batch.loss_mask, dtype=torch.float32), returns=torch.ones(7, 9))

    policy = LocalPolicy(loaded, SETTINGS)
    critic = policy.add_value_head(SETTINGS) if kind == "shared" else SeparateCritic.copy_of(loaded, SETTINGS)
    for _ in range(3):
        critic.update(filled, squared_error)
    values = critic.values(batch)
    assert values.dtype is torch.float32
    assert values[batch.loss_mask].mean() > 0.05
