import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import RolloutError
from burnish.rollouts.engine import Sampling
from burnish.rollouts.noise import sample_key, uniforms
from burnish.rollouts.sampling import check_sampling, filter_logits, invert_cumulative, sample

PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])


def kept(**filters: Any) -> list[int]:
    logits = filter_logits(PROBABILITIES.log()[None], **filters)[0]
    return torch.isfinite(logits).nonzero()[:, 0].tolist()


def test_filters_keep_the_tokens_counted_by_hand() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [1, 3]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.3) == [1]
    assert kept(top_p=0.5) == [1, 3]
    assert kept(top_p=0.7) == [1, 3, 4]
    assert kept(min_p=0.45) == [1, 3, 4]
    assert kept(min_p=0.6) == [1, 3]


def test_top_p_works_on_what_top_k_left() -> None:
    # After top-k 2 the masses are .4/.65 = .615 and .385, so the first alone has .6 (of the whole it has only .4).
    assert kept(top_k=2, top_p=0.6) == [1]
    assert kept(top_p=0.6) == [1, 3]


def test_ties_top_k_keeps_equals_and_top_p_takes_lower_ids_first() -> None:
    flat = torch.zeros(1, 4)
    assert torch.isfinite(filter_logits(flat, top_k=2)).all()
    assert torch.isfinite(filter_logits(flat, top_p=0.5))[0].tolist() == [True, True, False, False]


def test_a_token_at_each_end_of_its_interval() -> None:
    # Cumulative: .1, .5, .55, .8, 1
    numbers = torch.tensor(
        [0.0, 0.0999, 0.1001, 0.4999, 0.5001, 0.56, 0.7999, 0.8001, 1 - 2.0**-53], dtype=torch.float64
    )
    tokens, _ = sample(PROBABILITIES.log().expand(9, -1), numbers, Sampling(1))
    assert tokens.tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4]


def test_logprobs_are_those_of_the_distribution_asked_for() -> None:
    logits = PROBABILITIES.log()[None]
    number = torch.tensor([0.3], dtype=torch.float64)
    token, logprob = sample(logits, number, Sampling(1, top_k=2))
    assert token.item() == 1
    assert logprob.item() == pytest.approx(math.log(0.4 / 0.65), abs=1e-6)
    # At temperature .5 the probabilities are squared: .01 .16 .0025 .0625 .04, sum .275; .3 falls into token 1.
    token, logprob = sample(logits, number, Sampling(1, temperature=0.5))
    assert token.item() == 1
    assert logprob.item() == pytest.approx(math.log(0.16 / 0.275), abs=1e-6)
    token, logprob = sample(logits, number, Sampling(1, temperature=0.5, top_k=1, greedy=True))
    assert token.item() == 1
    assert logprob.item() == pytest.approx(math.log(0.16 / 0.275), abs=1e-6)


@pytest.mark.parametrize("filters", [{}, {"top_k": 4}, {"top_p": 0.85}, {"min_p": 0.3}, {"temperature": 1.7}])
def test_frequencies_follow_the_probabilities(filters: dict[str, float]) -> None:
    sampling = Sampling(1, **filters)  # type: ignore[arg-type]
    draws = 8000
    numbers = uniforms(
        torch.tensor([sample_key(0, 0, "p", i) for i in range(draws)]), torch.zeros(draws, dtype=torch.int64)
    )
    logits = PROBABILITIES.log()[None]
    tokens, _ = sample(logits.expand(draws, -1), numbers, sampling)
    scaled = filter_logits(
        logits / sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )
    expected = scaled.softmax(-1)[0] * draws
    counts = torch.bincount(tokens, minlength=5)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < 18.5  # at most 4 degrees of freedom, one in a thousand


@given(st.integers(1, 700), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_two_level_search_equals_the_plain_one(vocabulary: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(6, vocabulary, generator=generator) * (torch.rand(6, vocabulary, generator=generator) < 0.3)
    weights[:, seed % vocabulary] += 0.5
    numbers = torch.rand(6, generator=generator, dtype=torch.float64)
    tokens, totals = invert_cumulative(weights, numbers)
    cumulative = weights.double().cumsum(-1)
    assert torch.allclose(totals, cumulative[:, -1], rtol=1e-6)
    rounding = 1e-6 * cumulative[:, -1]  # within a block of tokens sums are float32
    for row in range(6):
        token = int(tokens[row])
        target = float(numbers[row] * cumulative[row, -1])
        assert weights[row, token] > 0
        assert cumulative[row, token] >= target - rounding[row]
        assert cumulative[row, token] - weights[row, token].double() <= target + rounding[row]


@given(st.integers(1, 700), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_row_alone_is_summed_bit_for_bit_as_among_others(vocabulary: int, rows: int) -> None:
    weights = torch.rand(7, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) + 1e-3
    numbers = torch.linspace(0, 0.99, 7, dtype=torch.float64)
    tokens, totals = invert_cumulative(weights, numbers)
    alone = invert_cumulative(weights[:rows].clone(), numbers[:rows])
    assert torch.equal(alone[0], tokens[:rows])
    assert torch.equal(alone[1], totals[:rows])


def test_the_largest_number_never_takes_a_token_of_weight_zero() -> None:
    weights = torch.tensor([[0.3, 0.7, 0.0, 0.0], [1e-30, 0.0, 0.0, 0.0]])
    tokens, _ = invert_cumulative(weights, torch.full((2,), 1 - 2.0**-53, dtype=torch.float64))
    assert tokens.tolist() == [1, 0]


def test_bf16_logits_are_sampled_in_float32() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    numbers = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=torch.float64)
    tokens, logprobs = sample(logits, numbers, Sampling(1))
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, logits.float().log_softmax(-1).gather(-1, tokens[:, None])[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_response_tokens", 0),
        ("temperature", 0.0),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", 1.0),
        ("stop", ("",)),
    ],
)
def test_numbers_out_of_range_are_named(field: str, value: Any) -> None:
    with pytest.raises(RolloutError, match=f"sampling.{field}"):
        check_sampling(Sampling(**{"max_response_tokens": 4, field: value}))
