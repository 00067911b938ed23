"""One optimizer step of supervised fine-tuning: an example alone, beside others, weighted, and cut anywhere."""

import math
from collections.abc import Sequence

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from burnish.data.sft import SftExample
from burnish.forward.attention import packs_rows
from burnish.forward.batch import TokenScores
from burnish.forward.probe import use_packed_rows
from burnish.forward.scoring import ResponseScorer
from burnish.models.roles import count_denominators
from burnish.observability.metrics import MetricStore
from burnish.trainers.rl.objective import LikelihoodObjective
from burnish.trainers.sft import build_sft_batch, token_weights

SIZES = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "pad_token_id": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
FAMILIES = {
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 8},
    "phi3": {"bos_token_id": 0, "eos_token_id": 1},
    "gemma2": {"head_dim": 8, "sliding_window": 64},
    "qwen3_moe": {"head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
}


def example(tokens: Sequence[int], trained: str, weight: float = 1.0) -> SftExample:
    """`trained` has an `x` for each token that is trained on."""
    return SftExample("", tuple(tokens), tuple(mark == "x" for mark in trained), weight=weight)


MINE = example((4, 5, 6, 7, 8, 9, 10), "..xx.x.")
OTHERS = [
    example((4, 5, 11, 12), "..xx"),  # shares its prompt
    example((13, 3, 14, 15, 3, 5, 6, 12, 9, 4, 4, 7), ".xxxxxxxxxxx"),
    example((5, 6, 7), "..x"),
]


def own_part(model: PreTrainedModel, neighbours: Sequence[SftExample], *, packed: bool) -> torch.Tensor:
    """Loss of MINE beside others, and the gradient of it for all weights, as one vector."""
    batch = build_sft_batch([*neighbours, MINE], pad_token_id=2)
    scorer, row = ResponseScorer(model), len(neighbours)
    assert packs_rows(model) is packed
    model.zero_grad()
    loss = -scorer.score(batch, only_trained=True).logprobs_BT[row].sum()
    loss.backward()
    gradient = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return torch.cat([loss.detach()[None], *gradient])


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", *FAMILIES])
def test_an_example_does_not_see_its_neighbours(load, family: str, packed: bool, monkeypatch) -> None:
    """Its loss and gradient are those that it has alone, before, behind and between others."""
    monkeypatch.setattr("burnish.forward.packing.PAYS", math.inf if packed else 0.0)
    if family in FAMILIES:
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **SIZES, **HEADS, **FAMILIES[family])
        model = AutoModelForCausalLM.from_config(config).eval()
        packs = packed and use_packed_rows(model)
    else:
        model, packs = load(family, plain=not packed).model, packed
    alone = own_part(model, [], packed=packs)
    for neighbours in (OTHERS, OTHERS[::-1], OTHERS[:1]):
        beside = own_part(model, neighbours, packed=packs)
        assert (beside - alone).norm() <= 1e-5 * alone.norm()
        assert beside[0] == pytest.approx(float(alone[0]), rel=1e-5)


def test_weights_have_mean_1_over_the_trained_tokens() -> None:
    """Rows of 3 and 1 trained tokens and weights 1 and 5: 3 * 1 + 1 * 5 = 8 over 4 tokens, so a factor of 1/2."""
    batch = build_sft_batch([example((4, 5, 6, 7), ".xxx"), example((4, 5), ".x", 5.0)], pad_token_id=2)
    assert batch.weights[:, 0].tolist() == [0.5, 2.5]
    assert token_weights([1.0, 1.0], batch.loss_mask) is None


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_weighted_mean_does_not_depend_on_micro_batches(dynamic: bool) -> None:
    """Two tokens of -log p 1 and 2 with weight 1, and one of 4 with weight 3: (1 + 2 + 3 * 4) / 5 = 3."""
    rows = [example((4, 5, 6), ".xx"), example((7, 8), ".x", 3.0)]
    batch, objective = build_sft_batch(rows, pad_token_id=2), LikelihoodObjective(dynamic)
    logprobs = -torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    denominators = count_denominators(batch)
    losses = [nll * (math.exp(-nll) if dynamic else 1) for nll in (1.0, 2.0, 4.0)]
    expected = (losses[0] + losses[1] + 3 * losses[2]) / 5
    for cut in ([[0, 1]], [[0], [1]], [[1], [0]]):
        chosen = [batch.select(rows) for rows in cut]
        widths = [part.loss_mask.shape[1] for part in chosen]
        scores = [TokenScores(logprobs[rows, :width]) for rows, width in zip(cut, widths, strict=True)]
        parts = [objective(*given, denominators) for given in zip(scores, chosen, strict=True)]
        assert float(sum(part.loss for part in parts)) == pytest.approx(expected)
        assert MetricStore.of(part.metrics for part in parts).row()["train/loss"] == pytest.approx(expected)
        assert ("train/cross_entropy" in parts[0].metrics) is dynamic
