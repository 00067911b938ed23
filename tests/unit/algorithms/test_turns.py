"""Credit for turns: hand-computed numbers, and what turns change where there is only one of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from burnish.algorithms.advantages import discounted_returns, dr_grpo, gae, gigpo, grpo, reinforce_plus_plus, turn_grpo
from burnish.algorithms.masking import as_single_turn, count_turns, lengths_within_turns, sum_within_turns
from burnish.algorithms.mismatch import correction_weights
from burnish.algorithms.policy_losses import gspo, turn_gspo
from burnish.algorithms.shaping import spread, token_rewards

NAN = float("nan")
EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)

# Two policy tokens, a tool's, one more token; one turn of two tokens; three turns with a tool's token between each.
TURNS = torch.tensor([[0, 0, -1, 1, -1, -1], [0, 0, -1, -1, -1, -1], [0, -1, 1, 1, -1, 2]])
MASK = TURNS >= 0


def rewards_of(*rows: list[float]) -> Tensor:
    """Rewards per token; NaN where the policy sampled nothing."""
    return torch.where(MASK, torch.tensor([row + [0.0] * (6 - len(row)) for row in rows]), NAN)


REWARDS = rewards_of([0.0, 1.0, 0.0, 4.0], [0.0, 1.0], [2.0, 0.0, 0.0, 0.0, 0.0, 6.0])


def test_sums_lengths_and_counts_of_turns() -> None:
    values = rewards_of([1.0, 2.0, 0.0, 4.0], [8.0, 16.0], [1.0, 0.0, 3.0, 5.0, 0.0, 7.0])
    expected = [[3.0, 3.0, 0, 4.0, 0, 0], [24.0, 24.0, 0, 0, 0, 0], [1.0, 0, 8.0, 8.0, 0, 7.0]]
    assert sum_within_turns(values, TURNS, MASK).tolist() == expected
    assert lengths_within_turns(TURNS, MASK).tolist() == [[2, 2, 1, 1, 1, 1], [2, 2, 1, 1, 1, 1], [1, 1, 2, 2, 1, 1]]
    assert count_turns(TURNS, MASK) == 6
    masked = MASK.clone()
    masked[2, 2:4] = False  # a turn without a trained token is none
    masked[1] = False
    assert count_turns(TURNS, masked) == 4
    assert as_single_turn(MASK[:1]).tolist() == [[0, 0, -1, 0, -1, -1]]


def test_turn_grpo_compares_the_same_turn_of_each_row() -> None:
    """gamma 1/2. Returns: row 0: 1 + 4/2 = 3, then 4; row 1: 1; row 2: 2 + (0 + 6/2)/2 = 3.5, 3, 6."""
    advantages, returns = turn_grpo(REWARDS, torch.tensor([5, 5, 5]), TURNS, MASK, gamma=0.5, normalise=False)
    assert returns.tolist() == [[3, 3, 0, 4, 0, 0], [1, 1, 0, 0, 0, 0], [3.5, 0, 3, 3, 0, 6]]
    # means: 2.5 of all three, 3.5 of rows 0 and 2, and the last turn is compared with nothing
    assert advantages.tolist() == [[0.5, 0.5, 0, 0.5, 0, 0], [-1.5, -1.5, 0, 0, 0, 0], [1, 0, -0.5, -0.5, 0, 0]]
    scaled, _ = turn_grpo(REWARDS, torch.tensor([5, 5, 5]), TURNS, MASK, gamma=0.5, eps=0.0)
    first, second = 1.75**0.5, 0.5**0.5  # ((.5^2 + 1.5^2 + 1) / 2) and (2 * .5^2) / 1
    torch.testing.assert_close(scaled[:, 0], torch.tensor([0.5, -1.5, 1.0]) / first)
    torch.testing.assert_close(scaled[0, 3], torch.tensor(0.5 / second))
    biased, _ = turn_grpo(REWARDS, torch.tensor([5, 5, 5]), TURNS, MASK, gamma=0.5, eps=0.0, unbiased=False)
    torch.testing.assert_close(biased[0, 3], torch.tensor(1.0))


def test_turn_grpo_compares_within_groups_only() -> None:
    advantages, _ = turn_grpo(REWARDS, torch.tensor([1, 2, 1]), TURNS, MASK, normalise=False, allow_single=True)
    # returns of row 0: 5, 4; of row 2: 8, 6, 6
    assert advantages.tolist() == [[-1.5, -1.5, 0, -1, 0, 0], [0.0] * 6, [1.5, 0, 1, 1, 0, 0]]


def test_gigpo_adds_what_the_same_state_brought() -> None:
    """gamma 1/2. Rows bring 5, 1 and 8, mean 14/3. The first turns share the prompt (returns 3, 1, 3.5). The second of
    row 0 and the third of row 2 answer the same observation, 7 (returns 4 and 6); nothing else answers 9."""
    observed = torch.tensor([[0, 0, -1, 7, -1, -1], [0, 0, -1, -1, -1, -1], [0, -1, 9, 9, -1, 7]])
    history = torch.tensor([[0, 0, -1, 1, -1, -1], [0, 0, -1, -1, -1, -1], [0, -1, 2, 2, -1, 3]])
    inputs = (REWARDS, torch.tensor([4, 4, 4]), TURNS, observed, history, MASK)
    advantages, returns = gigpo(*inputs, gamma=0.5, omega=2.0, normalise=False)
    assert returns.tolist() == [[3, 3, 0, 4, 0, 0], [1, 1, 0, 0, 0, 0], [3.5, 0, 3, 3, 0, 6]]
    whole = [5 - 14 / 3, 1 - 14 / 3, 8 - 14 / 3]
    expected = [
        [whole[0] + 2 * 0.5, whole[0] + 2 * 0.5, 0, whole[0] + 2 * -1, 0, 0],
        [whole[1] + 2 * -1.5, whole[1] + 2 * -1.5, 0, 0, 0, 0],
        [whole[2] + 2 * 1, 0, whole[2], whole[2], 0, whole[2] + 2 * 1],
    ]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    by_history, _ = gigpo(*inputs, gamma=0.5, omega=2.0, normalise=False, whole_history=True)
    torch.testing.assert_close(by_history[0, 3], torch.tensor(whole[0]))  # its history is nobody else's
    torch.testing.assert_close(by_history[0, 0], torch.tensor(whole[0] + 2 * 0.5))


def test_gigpo_compares_turns_of_one_row_that_return_to_a_state() -> None:
    turns, mask = torch.tensor([[0, 1], [0, -1]]), torch.tensor([[True, True], [True, False]])
    rewards, observed = torch.tensor([[1.0, 3.0], [2.0, NAN]]), torch.tensor([[5, 5], [5, -1]])
    advantages, _ = gigpo(rewards, torch.tensor([0, 0]), turns, observed, observed, mask, normalise=False)
    # 4 and 2 of the rows; 4, 3 and 2 of the state
    assert advantages.tolist() == [[1 + 1, 1 + 0], [-1 - 1, 0]]


def test_states_of_different_groups_are_different() -> None:
    turns, states = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64)
    rewards, groups = torch.tensor([[1.0], [0.0], [6.0], [0.0]]), torch.tensor([3, 3, 8, 8])
    advantages, _ = gigpo(rewards, groups, turns, states, states, turns == 0, normalise=False)
    assert advantages[:, 0].tolist() == [1.0, -1.0, 6.0, -6.0]


def test_rounding_of_sums_is_no_signal() -> None:
    turns, groups = torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0, 0])
    rewards = torch.tensor([[0.1, 0.2], [0.0, 0.3]])
    assert rewards.double().sum(dim=1).unique().numel() == 2
    assert turn_grpo(rewards, groups, turns, turns == 0)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert gigpo(rewards, groups, turns, turns, turns, turns == 0)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_row_that_is_left_out_of_the_loss_counts_in_its_group() -> None:
    turns, groups = torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 0])
    mask = torch.tensor([[True], [False]])
    inputs = torch.tensor([[1.0], [0.0]]), groups, turns
    assert turn_grpo(*inputs, mask, normalise=False)[0].tolist() == [[0.5], [0.0]]
    assert gigpo(*inputs, turns, turns, mask, normalise=False)[0].tolist() == [[1.0], [0.0]]


# One turn in each row


@EXAMPLES
@given(seed=SEEDS)
def test_rows_of_one_turn_get_what_grpo_gives(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    scores, groups = torch.randn(12, generator=g), torch.randint(0, 3, (12,), generator=g)
    groups[:3] = groups[3:6] = torch.arange(3)
    mask = torch.arange(5) < torch.randint(1, 6, (12, 1), generator=g)
    turns, states = as_single_turn(mask), torch.zeros(12, 5, dtype=torch.int64)
    rewards = token_rewards(scores, mask)
    for function, options in ((grpo, {}), (dr_grpo, {"normalise": False})):
        expected = spread(function(scores, groups), mask)
        by_turn, returns = turn_grpo(rewards, groups, turns, mask, gamma=0.3, **options)
        torch.testing.assert_close(by_turn, expected, atol=1e-6, rtol=1e-6)
        assert torch.equal(returns, spread(scores, mask))
        by_state, _ = gigpo(rewards, groups, turns, states, states, mask, gamma=0.3, omega=0.0, **options)
        torch.testing.assert_close(by_state, expected, atol=1e-6, rtol=1e-6)
        twice, _ = gigpo(rewards, groups, turns, states, states, mask, gamma=0.3, **options)
        torch.testing.assert_close(twice, 2 * expected, atol=2e-6, rtol=1e-6)


def conversations(seed: int) -> dict[str, Tensor]:
    """Rows of turns of random lengths, with random rewards, states and groups of two or more."""
    g = torch.Generator().manual_seed(seed)
    starts = torch.rand(9, 14, generator=g) < 0.3
    spoken = torch.rand(9, 14, generator=g) < 0.7
    starts[:, 0] = spoken[:, 0] = True
    begins = spoken & (starts | ~spoken.roll(1, dims=1))
    begins[:, 0] = True
    turns = torch.where(spoken, begins.cumsum(dim=1) - 1, -1)
    return {
        "token_rewards_BT": torch.where(spoken, torch.randn(9, 14, generator=g), NAN),
        "group_ids_B": torch.randperm(9, generator=g) % 3,
        "turn_index_BT": turns,
        "observation_ids_BT": torch.where(spoken, turns * 7 % 3, -1),
        "history_ids_BT": torch.where(spoken, turns * 5 % 4, -1),
        "mask_BT": spoken,
    }


@EXAMPLES
@given(seed=SEEDS)
def test_each_turn_of_a_group_is_centred(seed: int) -> None:
    tensors = conversations(seed)
    inputs = {key: value for key, value in tensors.items() if key not in ("observation_ids_BT", "history_ids_BT")}
    advantages, _ = turn_grpo(**inputs, gamma=0.9)
    for group in tensors["group_ids_B"].unique():
        ours = tensors["group_ids_B"] == group
        for number in range(int(tensors["turn_index_BT"].max()) + 1):
            at = tensors["turn_index_BT"][ours] == number
            of_rows = [row[here].unique() for row, here in zip(advantages[ours], at, strict=True) if here.any()]
            assert all(len(values) == 1 for values in of_rows)
            total = sum(float(values) for values in of_rows)
            assert total == pytest.approx(0.0, abs=1e-5)


# Discount by turn


def test_gae_discounts_from_turn_to_turn() -> None:
    """gamma 1/2, lam 1/2. Values are carried across the tool's token, and a turn's second token is not discounted."""
    turns = torch.tensor([[0, 0, -1, 1]])
    mask = turns >= 0
    rewards, values = torch.tensor([[0.0, 1.0, NAN, 4.0]]), torch.tensor([[1.0, 2.0, NAN, 2.0]])
    advantages, returns = gae(rewards, values, mask, turns, gamma=0.5, lam=0.5)
    # A3 = 4 - 2 = 2; A1 = 1 + .5 * 2 - 2 + .5 * .5 * 2 = .5; A0 = 0 + 1 * 2 - 1 + 1 * .5 * .5 = 1.25
    assert advantages.tolist() == [[1.25, 0.5, 0.0, 2.0]]
    assert returns.tolist() == [[2.25, 2.5, 0.0, 4.0]]
    by_token, _ = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    assert by_token.tolist() == [[0 + 0.5 * 2 - 1 + 0.25 * 0.5, 0.5, 0.0, 2.0]]


def test_returns_discount_from_turn_to_turn() -> None:
    returns = discounted_returns(REWARDS, MASK, TURNS, gamma=0.5)
    assert returns.tolist() == [[3, 3, 0, 4, 0, 0], [1, 1, 0, 0, 0, 0], [3.5, 0, 3, 3, 0, 6]]
    assert torch.equal(reinforce_plus_plus(REWARDS, MASK, TURNS, gamma=0.5)[1], returns)


@EXAMPLES
@given(seed=SEEDS, gamma=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_single_turn_has_no_discount_by_turn(seed: int, gamma: float) -> None:
    tensors = conversations(seed)
    rewards, mask = tensors["token_rewards_BT"], tensors["mask_BT"]
    one = discounted_returns(rewards, mask, as_single_turn(mask), gamma=gamma)
    torch.testing.assert_close(one, discounted_returns(rewards, mask, gamma=1.0))


# Ratios of turns


def test_turn_gspo_clips_each_turn_by_its_own_mean_ratio() -> None:
    """Log-ratios .1 and .3 in the first turn, -.5 in the second: ratios e^.2 and e^-.5, clipped to [.9, 1.1]."""
    turns, old = torch.tensor([[0, 0, -1, 1]]), torch.tensor([[-1.0, -1.0, NAN, -1.0]])
    mask = turns >= 0
    logprobs = torch.tensor([[-0.9, -0.7, NAN, -1.5]]).requires_grad_()
    for sign, expected in ((1.0, [-1.1, -1.1, 0.0, -2 * math.exp(-0.5)]), (-1.0, [math.exp(0.2)] * 2 + [0.0, 1.8])):
        advantages = sign * torch.tensor([[1.0, 1.0, NAN, 2.0]])
        loss = turn_gspo(logprobs, old, advantages, mask, clip_low=0.1, clip_high=0.1, turn_index_BT=turns).per_token_BT
        torch.testing.assert_close(loss, torch.tensor([expected]))
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        clipped = [True, True, True, False] if sign > 0 else [False, False, True, True]
        assert (gradient == 0).tolist() == [clipped]
    # One ratio for all, e^(-.1 / 3), is inside the bounds: nothing would be clipped.
    whole = gspo(logprobs, old, torch.ones_like(old), mask, clip_low=0.1, clip_high=0.1)
    torch.testing.assert_close(whole.per_token_BT[mask], torch.full((3,), -math.exp(-0.1 / 3)))


@EXAMPLES
@given(seed=SEEDS)
def test_the_ratio_of_the_only_turn_is_that_of_the_sequence(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.randint(1, 6, (4, 1), generator=g)
    old, new, advantages = (torch.randn(4, 5, generator=g) for _ in range(3))
    expected = gspo(new, old, advantages, mask).per_token_BT
    for turns in (None, as_single_turn(mask)):
        found = turn_gspo(new, old, advantages, mask, turn_index_BT=turns).per_token_BT
        torch.testing.assert_close(found, expected)


def test_mismatch_weights_of_turns() -> None:
    """Log-ratios ln 1.2 and ln 1.5 in the first turn, ln .25 in the second; what a tool said is of nobody."""
    turns = torch.tensor([[0, 0, -1, 1]])
    ratios = torch.tensor([[1.2, 1.5, NAN, 0.25]])
    weights = {
        (level, mode): correction_weights(
            ratios.log(), torch.zeros_like(ratios), turns >= 0, level=level, mode=mode, low=0.5, turn_index_BT=turns
        )
        for level in ("token", "turn", "sequence")
        for mode in ("truncate", "mask")
    }
    expected = {
        ("token", "truncate"): [1.2, 1.5, 0.0, 0.5],
        ("turn", "truncate"): [1.8, 1.8, 0.0, 0.5],
        ("turn", "mask"): [1.8, 1.8, 0.0, 0.0],
        ("sequence", "truncate"): [0.5, 0.5, 0.0, 0.5],
    }
    for kind, row in expected.items():
        torch.testing.assert_close(weights[kind], torch.tensor([row]))
    alone = correction_weights(ratios.log(), torch.zeros_like(ratios), turns >= 0, level="turn", low=0.5)
    torch.testing.assert_close(alone, weights["sequence", "truncate"])
