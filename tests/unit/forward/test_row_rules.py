from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, Phi3Config
from transformers import Phi3ForSequenceClassification as Phi3Classifier

from burnish.errors import ModelError
from burnish.forward.row_rules import RowRules, row_rules
from burnish.forward.scoring import TrunkRunner
from burnish.models.loading import LoadedModel
from burnish.models.reward_model import RewardModel

LENGTHS = [3, 9, 3, 12, 9]


@pytest.mark.parametrize(
    ("rules", "groups"),
    [
        (RowRules(), [[0, 1, 2, 3, 4]]),
        (RowRules(rotation=8), [[0, 2], [1, 3, 4]]),
        (RowRules(rotation=9), [[0, 1, 2, 4], [3]]),
        (RowRules("equal"), [[0, 2], [1, 4], [3]]),
        (RowRules("alone"), [[0], [1], [2], [3], [4]]),
        (RowRules(tried_up_to=8), [[0, 2], [1, 4], [3]]),
        (RowRules(stretch=12), [[0, 1, 2, 3, 4]]),
    ],
)
def test_who_may_stand_beside_whom(rules: RowRules, groups: list[list[int]]) -> None:
    assert rules.groups(LENGTHS) == groups


def test_rows_that_have_no_numbers_of_their_own_are_refused() -> None:
    with pytest.raises(ModelError, match="a row has 12 tokens, but beyond 11"):
        RowRules(stretch=11).groups(LENGTHS)


def test_what_padding_changes_is_found() -> None:
    """States that grow with the width of the pass, and then with the number of its rows."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=40)).eval()
    assert row_rules(model) == RowRules()
    model.config.summary_first_dropout = 0.5  # another config, so that the trial runs again
    model.transformer.ln_f.register_forward_hook(lambda _, given, out: out * (1 + given[0].shape[1]))
    assert row_rules(model).beside == "equal"
    model.config.summary_first_dropout = 0.6
    model.transformer.ln_f.register_forward_hook(lambda _, given, out: out * len(given[0]))
    assert row_rules(model).beside == "alone"


def test_no_row_longer_than_a_window_is_packed() -> None:
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=6)).eval()
    assert row_rules(model) == RowRules(packed_up_to=6)


def test_a_model_that_gives_other_numbers_each_time_is_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=41)).eval()
    model.transformer.ln_f.register_forward_hook(lambda _, given, out: out + torch.rand_like(out))
    with pytest.raises(ModelError, match="gpt2 model gives different numbers each time"):
        TrunkRunner(model.base_model)


def test_rewards_do_not_depend_on_neighbours_on_the_other_side_of_a_boundary() -> None:
    torch.manual_seed(0)
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4, "original_max_position_embeddings": 12}
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_labels": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 40, "pad_token_id": 0}
    config = Phi3Config(
        **sizes, **heads, rope_parameters=rope, original_max_position_embeddings=12, initializer_range=0.3
    )
    model = RewardModel(LoadedModel(Phi3Classifier(config).eval(), None, (1,), 0, 40))  # type: ignore[arg-type]
    pairs = [((3, 4, 5), (6, 7)), ((8,), tuple(range(2, 16))), ((9, 3), (4, 4, 4)), ((5,) * 9, (7,) * 4)]
    together = model.score(pairs)
    assert together == pytest.approx([model.score([pair])[0] for pair in pairs], abs=1e-6)
