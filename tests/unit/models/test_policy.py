import dataclasses
import json

import pytest
import torch
from gradients import gradient_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.schema_data import LoraConfig, ModelConfig
from burnish.errors import CheckpointError, DivergenceError, ModelError
from burnish.forward.logprobs import LogitsBuffer
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.models.roles import Denominators, ObjectiveValue, count_denominators
from burnish.types import Metric, Reduction

SETTINGS = OptimizerSettings(1e-2, 10, schedule="linear", warmup_steps=2)


class LikelihoodObjective:
    """Raise the mean log-probability of the trained tokens, and their entropy a little."""

    needs_entropy = True

    def __init__(self, factor=1.0):
        self.factor = factor
        self.denominators = []

    def __call__(self, scores, batch, denominators):
        self.denominators.append(denominators)
        gain = torch.where(batch.loss_mask, scores.logprobs_BT + 0.1 * scores.entropy_BT, 0.0)
        loss = -self.factor * gain.sum() / denominators.num_tokens
        return ObjectiveValue(loss, {"passes": Metric(Reduction.SUM, 1)})


def _policy(loaded, budget=10_000, **fields):
    return LocalPolicy(loaded, SETTINGS, temperature=0.7, tokens_per_microbatch=budget, **fields)


def test_gradient_equals_that_of_full_logits(load, batch, monkeypatch):
    found, _ = gradient_of(_policy(load()), batch, LikelihoodObjective())
    monkeypatch.setattr("burnish.forward.scoring.find_head_transform", lambda model: None)
    policy = _policy(load())
    assert not policy._scorer.is_chunked
    _assert_near(found, gradient_of(policy, batch, LikelihoodObjective())[0])


def _assert_near(found, expected):
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm()


def test_the_plain_path_leaves_every_gradient_to_pytorch(load, batch, monkeypatch):
    found, _ = gradient_of(_policy(load()), batch, LikelihoodObjective())
    for name in ("chunked_token_scores", "embedding_gradient_in_place"):
        monkeypatch.delattr(f"burnish.forward.scoring.{name}")
    _assert_near(found, gradient_of(_policy(load(plain=True)), batch, LikelihoodObjective())[0])
    with pytest.raises(NameError):
        gradient_of(_policy(load()), batch, LikelihoodObjective())


@pytest.mark.slow
def test_bfloat16_gradients_are_summed_in_float32(load, batch):
    """Those of seven micro-batches are the sum of seven that were taken one by one."""
    together, metrics = gradient_of(_policy(load(dtype="bfloat16"), budget=1), batch, LikelihoodObjective())
    assert metrics["passes"] == 7
    policy, sums = _policy(load(dtype="bfloat16")), dict.fromkeys(together, 0.0)
    for row in range(7):
        policy.accumulate(batch.select([row]), LikelihoodObjective(), count_denominators(batch))
        for (name, _), gradient in zip(policy.trainable_parameters(), policy.take_gradient()[0], strict=True):
            sums[name] = sums[name] + gradient.float()
    for name, gradient in together.items():
        assert gradient.dtype is torch.float32
        torch.testing.assert_close(gradient, sums[name], atol=1e-7, rtol=1e-5)


def test_microbatches_keep_their_logits_in_the_same_memory(load, batch, monkeypatch):
    policy, places = _policy(load(), budget=1), []
    give_back = LogitsBuffer.give_back

    def noting(buffer, logits):
        places.append(logits.data_ptr())
        give_back(buffer, logits)

    monkeypatch.setattr(LogitsBuffer, "give_back", noting)
    policy.update(batch, LikelihoodObjective())
    assert len(places) == 7
    assert len(set(places)) < 7
    assert policy._scorer._logits_buffer._spare is None  # afterwards it is free


def test_an_update_that_fails_keeps_no_logits(load, batch):
    class Failing(LikelihoodObjective):
        calls = 0

        def __call__(self, *given):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("the third micro-batch")
            return super().__call__(*given)

    policy = _policy(load(), budget=1)
    with pytest.raises(RuntimeError, match="third"):
        policy.update(batch, Failing())
    assert policy._scorer._logits_buffer._spare is None


def test_denominators_are_of_the_whole_batch(load, batch):
    objective = LikelihoodObjective()
    _policy(load(), budget=1).update(batch, objective)
    whole = Denominators(int(batch.loss_mask.sum()), 7, 7)
    assert objective.denominators == [whole] * 7
    masked = dataclasses.replace(batch, loss_mask=batch.loss_mask & (torch.arange(7) != 2)[:, None])
    assert count_denominators(masked).num_sequences == 6


def test_rows_without_a_trained_token_cost_nothing_and_change_nothing(load, batch):
    masked = dataclasses.replace(batch, loss_mask=batch.loss_mask & (torch.arange(7) < 4)[:, None])
    found, metrics = gradient_of(_policy(load(), budget=1), masked, LikelihoodObjective())
    expected, _ = gradient_of(_policy(load()), batch.select([0, 1, 2, 3]), LikelihoodObjective())
    assert metrics["passes"] == 4
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_divergence_stops_before_the_step(load, batch, factor):
    policy = _policy(load())
    before = [p.clone() for p in policy.model.parameters()]
    with pytest.raises(DivergenceError, match="step 0"):
        policy.update(batch, LikelihoodObjective(factor))
    assert policy.version == 0
    assert all(map(torch.equal, before, policy.model.parameters()))
    assert all(p.grad is None for p in policy.model.parameters())
    assert policy.update(batch, LikelihoodObjective())


def test_non_finite_gradient_is_caught(load, batch):
    class Explosion(LikelihoodObjective):
        def __call__(self, scores, batch, denominators):
            # the square root of 0 is finite, its slope is not
            return ObjectiveValue(torch.sqrt((scores.logprobs_BT * 0).sum()), {})

    policy = _policy(load())
    with pytest.raises(DivergenceError, match="gradient norm"):
        policy.update(batch, Explosion())
    assert not policy.model.training


@pytest.mark.slow_cases("bfloat16-None", "bfloat16-lora1", "float32-lora1")
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumed_training_is_bit_for_bit_the_same(load, batch, tmp_path, lora, dtype):
    policy = _policy(load(dtype=dtype), budget=40, lora=lora)
    for _ in range(2):
        policy.update(batch, LikelihoodObjective())
    policy.save_weights(tmp_path)
    torch.save(policy.training_state(), tmp_path / "state.pt")
    resumed = _policy(load(dtype=dtype), budget=40, lora=lora, seed=99)
    resumed.load_weights(tmp_path)
    resumed.load_training_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.version == 2
    for _ in range(2):
        straight = policy.update(batch, LikelihoodObjective())
        again = resumed.update(batch, LikelihoodObjective())
        assert straight.metrics == again.metrics
    for (name, one), other in zip(policy.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_saved_folder_is_an_ordinary_model(load, batch, tmp_path, family, lora):
    policy = _policy(load(family), lora=lora)
    policy.update(batch, LikelihoodObjective())
    live = [p.clone() for p in policy.model.parameters()]
    policy.save_weights(tmp_path)
    assert all(map(torch.equal, live, policy.model.parameters()))
    assert not list(tmp_path.glob("*.bin"))
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert AutoTokenizer.from_pretrained(tmp_path)("12")["input_ids"] == [5, 6]
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, policy.model(tokens).logits, atol=1e-5, rtol=1e-5)
    if lora is not None:
        adapted = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
        assert adapted == sorted(adapted)  # the order of a set is another one in each process
        assert len(adapted) > 1
    reloaded = _policy(load_model(ModelConfig(path=str(tmp_path), device="cpu")))
    torch.testing.assert_close(
        reloaded.logprobs(batch).logprobs_BT, policy.logprobs(batch).logprobs_BT, atol=1e-5, rtol=0
    )


def test_only_the_adapter_trains(load, batch):
    policy = _policy(load(), lora=LoraConfig(rank=2))
    names = [name for name, _ in policy.trainable_parameters()]
    assert names
    assert all("lora_" in name for name in names)
    frozen = {n: p.clone() for n, p in policy.model.named_parameters() if "lora_" not in n}
    policy.update(batch, LikelihoodObjective())
    policy.update(batch, LikelihoodObjective())
    assert all(torch.equal(p, frozen[n]) for n, p in policy.model.named_parameters() if n in frozen)


def test_the_first_ratio_is_one(load, batch):
    """Old scores and the update's own scores agree, with dropout, micro-batches and temperature in play."""
    policy = _policy(load("gpt2"), budget=25)
    old = policy.logprobs(batch).logprobs_BT

    class Compare(LikelihoodObjective):
        def __call__(self, scores, part, denominators):
            gap = (scores.logprobs_BT.detach() - part.old_logprobs)[part.loss_mask].abs().max()
            value = super().__call__(scores, part, denominators)
            return ObjectiveValue(value.loss, {"gap": Metric(Reduction.MAX, float(gap))})

    metrics = policy.update(batch.replace(old_logprobs=old), Compare()).metrics
    assert metrics["gap"].result() < 1e-5
    assert metrics["policy/learning_rate"].result() == pytest.approx(5e-3)  # half way up the warm-up


@pytest.mark.parametrize("targets", [("nonesuch",), ("lm_head",)])
def test_bad_lora_targets(load, targets):
    with pytest.raises(ModelError, match=targets[0]):
        _policy(load(), lora=LoraConfig(target_modules=targets))


@pytest.mark.slow
def test_loading_weights_that_do_not_fit(load, tmp_path):
    _policy(load()).save_weights(tmp_path)
    with pytest.raises(CheckpointError, match="no adapter"):
        _policy(load(), lora=LoraConfig(rank=2)).load_weights(tmp_path)
    _policy(load(), lora=LoraConfig(rank=4)).save_weights(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not fit the model: .*lora_"):
        _policy(load(), lora=LoraConfig(rank=2)).load_weights(tmp_path)
