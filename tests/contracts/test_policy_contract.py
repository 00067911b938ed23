"""What every implementation of `roles.Policy` and `roles.Reference` promises. Add yours to `IMPLEMENTATIONS`."""

import pytest
import torch

from burnish.algorithms.policy_losses.clipped import ppo_clip
from burnish.config.schema_data import LoraConfig
from burnish.errors import DivergenceError, RolloutError
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, ObjectiveValue, Signals, count_denominators
from burnish.trainers.rl.objective import PolicyObjective
from burnish.types import Metric, Reduction


def _local(loaded, lora=None):
    return LocalPolicy(loaded, OptimizerSettings(1e-2, 10), tokens_per_microbatch=24, lora=lora)


IMPLEMENTATIONS = {"local": _local, "local_lora": lambda loaded: _local(loaded, LoraConfig(rank=2))}


@pytest.fixture(params=IMPLEMENTATIONS)
def policy(request, new_model):
    return IMPLEMENTATIONS[request.param](new_model())


@pytest.fixture
def twin(request, new_model):
    """The same policy once more."""
    return IMPLEMENTATIONS[request.node.callspec.params["policy"]](new_model())


class Likelihood:
    needs_entropy = False

    def __init__(self, factor=-1.0):
        self.factor = factor

    def __call__(self, scores, batch, denominators):
        chosen = torch.where(batch.loss_mask, scores.logprobs_BT, 0.0)
        rows = Metric(Reduction.SUM, len(batch))
        return ObjectiveValue(
            self.factor * chosen.sum() / denominators.num_tokens, {"rows": rows}, Signals(approx_kl=rows)
        )


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


def test_entropies_come_with_the_numbers_of_their_rows(policy, batch):
    """As the step began, whatever micro-batches it was cut into; nothing without numbers."""
    expected = policy.logprobs(batch, entropy=True).entropy_BT
    objective = PolicyObjective(ppo_clip, {"clip_low": 0.2, "clip_high": 0.2}, "token_mean", 6)
    advantages = torch.ones(4, 6)
    numbered = batch.replace(advantages=advantages, row_numbers=torch.arange(4) + 3)
    found = policy.update(numbered, objective).entropies
    assert sorted(row for part in found for row in part.row_numbers_B.tolist()) == [3, 4, 5, 6]
    for rows_B, entropy_BT in found:
        for row, own in zip(rows_B - 3, entropy_BT, strict=True):
            width = len(own)
            torch.testing.assert_close(own, expected[row, :width] * batch.loss_mask[row, :width], atol=1e-5, rtol=0)
    assert policy.update(batch.replace(advantages=advantages), objective).entropies == []


def test_divergence_leaves_the_weights(policy, batch):
    before = policy.logprobs(batch).logprobs_BT
    with pytest.raises(DivergenceError):
        policy.update(batch, Likelihood(float("nan")))
    assert policy.version == 0
    assert torch.equal(before, policy.logprobs(batch).logprobs_BT)


def weights_of(policy):
    return {name: tensor.clone() for name, tensor in policy.publish().tensors()}


def assert_same_weights(one, other):
    expected, found = weights_of(one), weights_of(other)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_accumulate_and_settle_are_an_update(policy, twin, batch):
    for planned in (3, 4):
        whole = policy.update(batch, Likelihood(), planned_step=planned)
        twin.accumulate(batch, Likelihood(), count_denominators(batch))
        parts = twin.settle(planned)
        assert {n: m.result() for n, m in whole.metrics.items()} == {n: m.result() for n, m in parts.metrics.items()}
        assert whole.signals == parts.signals
    assert_same_weights(policy, twin)


def test_a_step_in_two_parts_is_one_step(policy, twin, batch):
    """The gradients add up, and so do metrics and signals."""
    whole = policy.update(batch, Likelihood())
    for rows in ([0, 2], [1, 3]):
        twin.accumulate(batch.select(rows), Likelihood(), count_denominators(batch))
    assert twin.version == 0
    parts = twin.settle()
    assert twin.version == 1
    grad_norm = whole.metrics["policy/grad_norm"].result()
    assert parts.metrics["policy/grad_norm"].result() == pytest.approx(grad_norm, rel=1e-5)
    assert parts.metrics["rows"].result() == whole.metrics["rows"].result() == 4
    assert parts.signals.approx_kl.result() == whole.signals.approx_kl.result() == 4
    expected, found = weights_of(policy), weights_of(twin)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=2e-5, rtol=0)


def test_a_part_that_fails_drops_the_step(policy, twin, batch):
    class Broken(Likelihood):
        def __call__(self, scores, part, denominators):
            raise MemoryError

    policy.update(batch, Likelihood())
    twin.accumulate(batch, Likelihood(), count_denominators(batch))
    with pytest.raises(MemoryError):
        twin.accumulate(batch, Broken(), count_denominators(batch))
    with pytest.raises(ValueError, match="without a step begun by accumulate"):
        twin.settle()
    twin.update(batch, Likelihood())
    assert_same_weights(policy, twin)


def test_parts_of_two_steps_do_not_join(policy, batch):
    policy.accumulate(batch, Likelihood(), Denominators(12, 4, 4))
    with pytest.raises(ValueError, match="cannot be added to a step with"):
        policy.accumulate(batch, Likelihood(), Denominators(13, 4, 4))


def test_published_weights_have_the_version_and_end_with_it(policy, batch):
    weights = policy.publish()
    assert weights.version == 0
    assert all(torch.isfinite(tensor).all() for _, tensor in weights.tensors())
    policy.update(batch, Likelihood())
    assert policy.publish().version == 1
    with pytest.raises(RolloutError, match=r"version 0 .* is now at version 1"):
        weights.tensors()


def test_state_and_weights_make_a_twin(policy, twin, batch, tmp_path):
    policy.update(batch, Likelihood())
    policy.save_weights(tmp_path)
    assert (tmp_path / "config.json").is_file()
    assert list(tmp_path.glob("*.safetensors"))
    twin.load_weights(tmp_path)
    twin.load_training_state(policy.training_state())
    policy.update(batch, Likelihood())
    twin.update(batch, Likelihood())
    assert twin.version == policy.version == 2
    assert torch.equal(twin.logprobs(batch).logprobs_BT, policy.logprobs(batch).logprobs_BT)


def test_reference_does_not_follow_the_policy(policy, batch):
    reference = policy.reference()
    start = reference.logprobs(batch)
    torch.testing.assert_close(start, policy.logprobs(batch).logprobs_BT, atol=1e-6, rtol=0)
    assert start.shape == (4, 6)
    assert not start.requires_grad
    policy.update(batch, Likelihood())
    policy.update(batch, Likelihood())
    assert torch.equal(reference.logprobs(batch), start)
