import pytest
import torch

from burnish.algorithms import shaping
from burnish.errors import ConfigError

NAN = float("nan")
MASK = torch.tensor([[True, False, True, False], [True, True, True, True], [False, False, False, False]])


def test_the_score_stands_on_the_last_trained_token():
    rewards = shaping.token_rewards(torch.tensor([1.0, 2.0, 3.0]), MASK)
    assert rewards.tolist() == [[0, 0, 1, 0], [0, 0, 0, 2], [0, 0, 0, 0]]


def test_the_kl_penalty_stands_on_every_trained_token():
    kl = torch.where(MASK, torch.full((3, 4), 0.5), torch.full((3, 4), NAN))
    rewards = shaping.token_rewards(torch.tensor([1.0, 2.0, NAN]), MASK, kl_BT=kl, kl_coef=0.2)
    expected = torch.tensor([[-0.1, 0.0, 0.9, 0.0], [-0.1, -0.1, -0.1, 1.9], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(rewards, expected)
    torch.testing.assert_close(shaping.sequence_scores(rewards, MASK), torch.tensor([0.8, 1.6, 0.0]))


def test_dense_rewards_stand_in_place_of_the_score():
    dense = torch.where(MASK, torch.full((3, 4), 0.25), torch.full((3, 4), NAN))
    rewards = shaping.token_rewards(torch.tensor([0.5, 1.0, 0.0]), MASK, dense_rewards_BT=dense)
    assert shaping.sequence_scores(rewards, MASK).tolist() == [0.5, 1.0, 0.0]
    assert rewards[0].tolist() == [0.25, 0.0, 0.25, 0.0]


def test_spread_and_whitening_of_advantages():
    advantages = shaping.spread(torch.tensor([1.0, -1.0, NAN]), MASK)
    assert advantages.tolist() == [[1, 0, 1, 0], [-1, -1, -1, -1], [0, 0, 0, 0]]
    white = shaping.whiten_advantages(advantages, MASK)[MASK]
    assert white.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert white.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_whitened_rewards_keep_their_mean():
    rewards = torch.tensor([[1.0, NAN, 3.0, NAN], [5.0, 7.0, 9.0, 11.0], [NAN] * 4])
    white = shaping.whiten_rewards(rewards, MASK)[MASK]
    assert white.mean().item() == pytest.approx(6.0)
    assert white.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_clipping():
    scores = torch.tensor([-3.0, 0.5, 3.0])
    assert shaping.clip_scores(scores, limit=1.0).tolist() == [-1.0, 0.5, 1.0]
    assert shaping.clip_advantages(scores, limit=2.0).tolist() == [-2.0, 0.5, 2.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shaping.clip_advantages(torch.ones(1), limit=0.0), "advantage clip"),
        (lambda: shaping.overlong_penalty(torch.ones(1), max_response_tokens=8, buffer_tokens=9), "overlong buffer"),
        (lambda: shaping.overlong_penalty(torch.ones(1), max_response_tokens=8, buffer_tokens=0), "overlong buffer"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
