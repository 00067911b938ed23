"""What every implementation of `roles.Critic` promises. Add yours to `IMPLEMENTATIONS`."""

import pytest
import torch

from burnish.config.schema_data import LoraConfig
from burnish.errors import CheckpointError, DivergenceError
from burnish.models.critic import SeparateCritic
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import count_denominators
from burnish.trainers.rl.objective import ClippedValueObjective

SETTINGS = OptimizerSettings(1e-2, 10)
LOSS = ClippedValueObjective(clip=None, aggregation="token_mean", length=6)


def _separate(loaded, lora=None):
    critic = SeparateCritic.copy_of(loaded, SETTINGS, tokens_per_microbatch=24)
    return LocalPolicy(loaded, SETTINGS, tokens_per_microbatch=24, lora=lora), critic


def _shared(loaded, lora=None):
    policy = LocalPolicy(loaded, SETTINGS, tokens_per_microbatch=24, lora=lora)
    return policy, policy.add_value_head(SETTINGS)


IMPLEMENTATIONS = {
    "separate": _separate,
    "separate next to LoRA": lambda loaded: _separate(loaded, LoraConfig(rank=2)),
    "shared": _shared,
    "shared with LoRA": lambda loaded: _shared(loaded, LoraConfig(rank=2)),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def pair(request, new_model):
    """A policy and its critic."""
    return IMPLEMENTATIONS[request.param](new_model())


@pytest.fixture
def twins(request, new_model):
    """The same policy and critic once more."""
    return IMPLEMENTATIONS[request.node.callspec.params["pair"]](new_model())


@pytest.fixture
def moved(pair, batch):
    """The critic after an update, and its values."""
    _, critic = pair
    critic.update(batch, LOSS)
    return critic, critic.values(batch)


def weights_of(policy):
    return {name: value.detach().clone() for name, value in policy.model.named_parameters()}


def error(critic, batch):
    return float((critic.values(batch) - batch.returns)[batch.loss_mask].square().mean())


def test_values_begin_at_zero_and_have_the_batch_shape(pair, batch):
    _, critic = pair
    values = critic.values(batch)
    assert values.shape == (4, 6)
    assert values.dtype is torch.float32
    assert not values.requires_grad
    assert not values.any()


def test_an_update_learns_and_never_moves_the_policy(pair, batch):
    policy, critic = pair
    before, policy_before = error(critic, batch), weights_of(policy)
    for _ in range(5):
        metrics = critic.update(batch, LOSS).metrics
    assert {"critic/loss", "critic/grad_norm", "critic/learning_rate", "critic/clip_fraction"} <= metrics.keys()
    assert error(critic, batch) < before
    assert all(torch.equal(value, policy_before[name]) for name, value in weights_of(policy).items())


def test_values_stay_zero_past_the_end_and_padding_is_not_read(moved, batch):
    critic, values = moved
    assert values[batch.loss_mask].all()
    assert not values[~batch.loss_mask].any()
    spoilt = batch.replace(response_tokens=torch.where(batch.loss_mask, batch.response_tokens, 3))
    assert torch.equal(critic.values(spoilt), values)


@pytest.mark.slow_cases("separate next to LoRA")
def test_a_value_belongs_to_the_state_before_its_token(moved, batch):
    """Changing response token t changes the values after it, never the one at it or before it."""
    critic, values = moved
    for t in range(5):
        tokens = batch.response_tokens.clone()
        tokens[0, t] = 3 + (tokens[0, t] - 2) % 13
        changed = critic.values(batch.replace(response_tokens=tokens))
        torch.testing.assert_close(changed[0, : t + 1], values[0, : t + 1], atol=1e-6, rtol=0)
        if t < 4:
            assert (changed[0, t + 1 : 5] != values[0, t + 1 : 5]).all()


def test_divergence_leaves_the_weights(moved, batch):
    critic, values = moved
    with pytest.raises(DivergenceError, match="critic"):
        critic.update(batch.replace(returns=batch.returns * float("inf")), LOSS)
    assert torch.equal(critic.values(batch), values)


def test_a_batch_without_trained_tokens_moves_nothing(moved, batch):
    critic, values = moved
    metrics = critic.update(batch.replace(loss_mask=torch.zeros_like(batch.loss_mask)), LOSS).metrics
    assert metrics["critic/empty_updates"].result() == 1
    assert torch.equal(critic.values(batch), values)


def test_accumulate_and_settle_are_an_update(pair, twins, batch):
    one, other = pair[1], twins[1]
    for planned in (3, 4):
        whole = one.update(batch, LOSS, planned_step=planned)
        other.accumulate(batch, LOSS, count_denominators(batch))
        parts = other.settle(planned)
        assert {n: m.result() for n, m in whole.metrics.items()} == {n: m.result() for n, m in parts.metrics.items()}
    assert torch.equal(one.values(batch), other.values(batch))


def test_a_step_in_two_parts_is_one_step(pair, twins, batch):
    one, other = pair[1], twins[1]
    one.update(batch, LOSS)
    for rows in ([0, 2], [1, 3]):
        other.accumulate(batch.select(rows), LOSS, count_denominators(batch))
    assert other.version == 0
    other.settle()
    assert other.version == 1
    torch.testing.assert_close(other.values(batch), one.values(batch), atol=1e-5, rtol=0)


@pytest.mark.slow_cases("separate next to LoRA")
def test_state_and_weights_make_a_twin(pair, twins, batch, tmp_path):
    policy, critic = pair
    twin_policy, twin = twins
    critic.update(batch, LOSS)
    policy.save_weights(tmp_path / "policy")
    critic.save_weights(tmp_path / "critic")
    twin_policy.load_weights(tmp_path / "policy")
    twin.load_weights(tmp_path / "critic")
    twin.load_training_state(critic.training_state())
    assert torch.equal(twin.values(batch), critic.values(batch))
    critic.update(batch, LOSS)
    twin.update(batch, LOSS)
    assert twin.version == critic.version == 2
    assert torch.equal(twin.values(batch), critic.values(batch))


@pytest.mark.slow_cases("separate")
def test_a_folder_without_a_head_is_refused(pair, batch, tmp_path):
    _, critic = pair
    critic.save_weights(tmp_path)
    (tmp_path / "value_head.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no value head"):
        critic.load_weights(tmp_path)
