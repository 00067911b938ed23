import pytest
import torch

from burnish.algorithms.aggregation import AGGREGATIONS, aggregate
from burnish.errors import ConfigError

LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", 16 / 4),
        ("sequence_mean_token_mean", (2 + 10) / 2),
        ("sequence_mean_token_sum", 16 / 2),
        ("sequence_mean_token_sum_norm", 16 / 2 / 8),
        ("turn_mean_token_mean", (2 + 10) / 2),
    ],
)
def test_each_mode_counts_trained_tokens_and_the_sequences_that_have_any(mode, expected):
    assert aggregate(LOSS, MASK, mode, length=8).item() == pytest.approx(expected)


def test_each_turn_has_the_same_weight():
    turns = torch.tensor([[0, 0, 1], [0, -1, -1], [-1, -1, -1]])
    # 1.5, 3 and 10
    assert aggregate(LOSS, MASK, "turn_mean_token_mean", turn_index_BT=turns).item() == pytest.approx(14.5 / 3)
    part = aggregate(LOSS[:1], MASK[:1], "turn_mean_token_mean", turn_index_BT=turns[:1], num_turns=3)
    assert part.item() == pytest.approx(4.5 / 3)
    without_the_first = MASK & (turns != 0)  # a turn that is not trained on is none
    assert aggregate(LOSS, without_the_first, "turn_mean_token_mean", turn_index_BT=turns).item() == 3.0


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("counts", [{}, {"num_tokens": 0, "num_sequences": 0}, {"num_tokens": 5, "num_sequences": 2}])
def test_nothing_trained_gives_zero_in_value_and_gradient(mode, counts):
    loss = torch.full((2, 3), float("nan"), requires_grad=True)
    total = aggregate(loss, torch.zeros(2, 3, dtype=torch.bool), mode, length=8, **counts)
    total.backward()
    assert total.item() == 0.0
    assert loss.grad.abs().sum().item() == 0.0


def test_a_misspelt_mode_and_a_missing_length_are_named():
    with pytest.raises(ConfigError, match="did you mean 'token_mean'"):
        aggregate(LOSS, MASK, "token-mean")
    with pytest.raises(ConfigError, match="needs a constant length"):
        aggregate(LOSS, MASK, "sequence_mean_token_sum_norm")
    with pytest.raises(ConfigError, match="length is 0"):
        aggregate(LOSS, MASK, "sequence_mean_token_sum_norm", length=0)
    wanting = [name for name, row in AGGREGATIONS.items() if "length" in row.required_options]
    assert wanting == ["sequence_mean_token_sum_norm"]
