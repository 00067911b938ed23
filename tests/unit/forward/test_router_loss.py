"""The load-balancing loss of mixture models in updates of the policy."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import gradient_of
from transformers import MixtralConfig, MixtralForCausalLM

from burnish.config.schema_data import ModelConfig
from burnish.errors import ModelError
from burnish.forward.attention import packs_rows
from burnish.forward.batch import Batch
from burnish.forward.router_loss import RouterLoss
from burnish.models.loading import load_model
from burnish.models.optimizers import OptimizerSettings
from burnish.models.policy import LocalPolicy
from burnish.trainers.rl.objective import LikelihoodObjective

SIZES = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "pad_token_id": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "sliding_window": None}


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: Any, tokenizer: Any) -> Path:
    """One that asks for its routers' logits, which the engines and passes here do not want."""
    folder = tmp_path_factory.mktemp("mixtral")
    torch.manual_seed(0)
    config = MixtralConfig(**SIZES, **HEADS, num_local_experts=4, output_router_logits=True, initializer_range=0.3)
    MixtralForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_of(folder: Path, coef: float, *, budget: int = 10_000, plain: bool = False, **fields: Any) -> LocalPolicy:
    config = ModelConfig(path=str(folder), device="cpu", router_aux_coef=coef, **fields)
    return LocalPolicy(load_model(config, plain=plain), OptimizerSettings(0.0, 10), tokens_per_microbatch=budget)


def own_loss(policy: LocalPolicy, batch: Batch) -> torch.Tensor:
    """As the model itself computes it, for the tokens of one row that predict another."""
    (prompt,), (length,) = batch.prompt_lengths.tolist(), batch.response_lengths.tolist()
    text = torch.cat([batch.prompt_tokens[0, :prompt], batch.response_tokens[0, :length]])
    loss: torch.Tensor = policy.model(input_ids=text[None, :-1], output_router_logits=True).aux_loss
    return loss


def test_the_loss_is_worked_out_by_hand(mixtral: Path) -> None:
    router = RouterLoss(policy_of(mixtral, 0.0).model)
    even = torch.zeros(3, 4)
    router.add((even, even), torch.ones(1, 3))  # each expert has probability 1/4, and two of four get every token
    assert router.take().item() == pytest.approx(4 * (2 * 0.25))
    certain = torch.tensor([[50.0, 0.0, -50.0, -50.0]] * 3)
    router.add((certain,), torch.tensor([[1, 1, 0]]))  # all probability on an expert that gets every token
    assert router.take().item() == pytest.approx(4 * 1.0)
    router.add((even,), torch.ones(1, 3))
    router.add((certain[:1],), torch.ones(1, 1))
    assert router.take().item() == pytest.approx((3 * 2.0 + 1 * 4.0) / 4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_its_gradient_is_added_with_the_coefficient(mixtral: Path, batch: Batch, checkpointing: bool) -> None:
    row = batch.select([0])
    without, metrics = gradient_of(policy_of(mixtral, 0.0), row, LikelihoodObjective())
    assert "policy/router_aux_loss" not in metrics
    policy = policy_of(mixtral, 0.5, gradient_checkpointing=checkpointing)
    with_it, metrics = gradient_of(policy, row, LikelihoodObjective())
    loss = own_loss(policy, row)
    loss.backward()
    assert metrics["policy/router_aux_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, weight in policy.trainable_parameters():
        wanted = without[name] + (0 if weight.grad is None else 0.5 * weight.grad)
        torch.testing.assert_close(with_it[name], wanted, atol=1e-6, rtol=1e-4)


def test_micro_batches_count_by_their_trained_tokens(mixtral: Path, batch: Batch) -> None:
    rows = batch.select([0, 1, 2])
    policy = policy_of(mixtral, 0.5, budget=1)
    _, metrics = gradient_of(policy, rows, LikelihoodObjective())
    with torch.no_grad():
        losses = [own_loss(policy, rows.select([row])).item() for row in range(3)]
    shares = (rows.loss_mask.sum(1) / rows.loss_mask.sum()).tolist()
    wanted = sum(loss * share for loss, share in zip(losses, shares, strict=True))
    assert metrics["policy/router_aux_loss"] == pytest.approx(wanted, rel=1e-5)


def test_padding_and_packing_change_nothing(mixtral: Path, batch: Batch) -> None:
    """Padding counts nothing, and a prompt that rows share in a packed row as often as they are."""
    shared = batch.replace(
        prompt_tokens=batch.prompt_tokens[[0, 0, 0, 3, 3, 5, 6]], prompt_lengths=torch.tensor([6, 6, 6, 2, 2, 4, 1])
    )
    packed, padded = (policy_of(mixtral, 0.5, plain=plain) for plain in (False, True))
    assert packs_rows(packed.model)
    assert not packs_rows(padded.model)
    found, expected = (gradient_of(policy, shared, LikelihoodObjective()) for policy in (packed, padded))
    assert found[1]["policy/router_aux_loss"] == pytest.approx(expected[1]["policy/router_aux_loss"], rel=1e-5)


def test_models_without_a_router_are_refused(load: Any, mixtral: Path) -> None:
    with pytest.raises(ModelError, match="this llama model has no router"):
        load(router_aux_coef=0.1)
    with pytest.raises(ModelError, match="rl and sft only"):
        load_model(ModelConfig(path=str(mixtral), device="cpu", router_aux_coef=0.1), head="score")
