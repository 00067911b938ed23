"""What every implementation of `roles.Policy` and `roles.Reference` promises. Add yours to `IMPLEMENTATIONS`."""

from __future__ import annotations

import pytest
import torch

from burnish.config.schema_data import LoraConfig
from burnish.errors import DivergenceError
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import ObjectiveValue


def _local(loaded, lora=None):
    return LocalPolicy(loaded, OptimizerSettings(1e-2, 10), tokens_per_microbatch=24, lora=lora)


IMPLEMENTATIONS = {"local": _local, "local_lora": lambda loaded: _local(loaded, LoraConfig(rank=2))}


@pytest.fixture(params=IMPLEMENTATIONS)
def policy(request, new_model):
    return IMPLEMENTATIONS[request.param](new_model())


class Likelihood:
    needs_entropy = False

    def __init__(self, factor=-1.0):
        self.factor = factor

    def __call__(self, scores, batch, denominators):
        chosen = torch.where(batch.loss_mask, scores.logprobs_BT, 0.0)
        return ObjectiveValue(self.factor * chosen.sum() / denominators.num_tokens, {})


def test_logprobs_have_the_batch_shape_and_no_gradient(policy, batch):
    scores = policy.logprobs(batch)
    assert scores.logprobs_BT.shape == (4, 6)
    assert scores.logprobs_BT.dtype is torch.float32
    assert not scores.logprobs_BT.requires_grad
    assert scores.entropy_BT is None
    assert (scores.logprobs_BT[batch.loss_mask] < 0).all()
    assert not scores.logprobs_BT[~batch.loss_mask].any()


def test_entropy_lies_between_zero_and_log_vocabulary(policy, batch):
    entropy = policy.logprobs(batch, entropy=True).entropy_BT
    assert entropy.shape == (4, 6)
    inside = entropy[batch.loss_mask]
    assert (inside > 0).all()
    assert (inside <= torch.log(torch.tensor(16.0)) + 1e-5).all()


def test_scoring_changes_nothing(policy, batch):
    first = policy.logprobs(batch).logprobs_BT
    assert torch.equal(first, policy.logprobs(batch).logprobs_BT)
    assert policy.version == 0


def test_update_counts_and_learns(policy, batch):
    before = policy.logprobs(batch).logprobs_BT.sum()
    metrics = policy.update(batch, Likelihood()).metrics
    policy.update(batch, Likelihood())
    assert policy.version == 2
    assert {"policy/grad_norm", "policy/learning_rate"} <= metrics.keys()
    assert policy.logprobs(batch).logprobs_BT.sum() > before


def test_divergence_leaves_the_weights(policy, batch):
    before = policy.logprobs(batch).logprobs_BT
    with pytest.raises(DivergenceError):
        policy.update(batch, Likelihood(float("nan")))
    assert policy.version == 0
    assert torch.equal(before, policy.logprobs(batch).logprobs_BT)


def test_state_and_weights_make_a_twin(policy, new_model, batch, tmp_path, request):
    policy.update(batch, Likelihood())
    policy.save_weights(tmp_path)
    assert (tmp_path / "config.json").is_file()
    assert list(tmp_path.glob("*.safetensors"))
    twin = IMPLEMENTATIONS[request.node.callspec.params["policy"]](new_model())
    twin.load_weights(tmp_path)
    twin.load_training_state(policy.training_state())
    policy.update(batch, Likelihood())
    twin.update(batch, Likelihood())
    assert twin.version == policy.version == 2
    assert torch.equal(twin.logprobs(batch).logprobs_BT, policy.logprobs(batch).logprobs_BT)


def test_reference_does_not_follow_the_policy(policy, batch):
    reference = policy.reference()
    start = reference.logprobs(batch)
    assert start.shape == (4, 6)
    assert not start.requires_grad
    policy.update(batch, Likelihood())
    policy.update(batch, Likelihood())
    assert torch.equal(reference.logprobs(batch), start)
