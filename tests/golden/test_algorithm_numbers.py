"""Numbers worked out by hand or published: if one of these moves, the mathematics has changed."""

import pytest
import torch
from torch import Tensor

from burnish.algorithms import kl, shaping
from burnish.algorithms.advantages import dr_grpo, gae, grpo, maxrl, rloo
from burnish.algorithms.masking import masked_var, whiten
from burnish.algorithms.policy_losses import dppo, ppo_clip, reinforce, sapo
from burnish.algorithms.policy_losses.weighted import sapo_gate
from burnish.algorithms.ratios import highest_entropy
from burnish.errors import ConfigError

REWARDS = torch.arange(1.2, 2.05, 0.1).reshape(3, 3)
ALL = torch.ones(3, 3, dtype=torch.bool)


def close(actual: Tensor, expected: object, atol: float = 5e-5) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def test_whitening_with_the_biased_variance():
    close(masked_var(REWARDS, ALL), 0.0666667, atol=1e-6)
    close(
        whiten(REWARDS, ALL, shift_mean=False),
        [[0.0508, 0.4381, 0.8254], [1.2127, 1.6, 1.9873], [2.3746, 2.7619, 3.1492]],
    )


def test_whitening_with_the_unbiased_variance():
    close(masked_var(REWARDS, ALL, unbiased=True), 0.075, atol=1e-6)
    close(
        whiten(REWARDS, ALL, shift_mean=False, unbiased=True),
        [[0.1394, 0.5046, 0.8697], [1.2349, 1.6, 1.9651], [2.3303, 2.6954, 3.0606]],
    )


def test_gae():
    rewards, values = torch.tensor([[-0.05, 0.02, 0.4]]), torch.tensor([[0.1, 0.2, 0.3]])
    advantages, returns = gae(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam=0.95)
    close(advantages, [[0.25425, 0.215, 0.1]], atol=1e-6)
    close(returns, [[0.35425, 0.415, 0.4]], atol=1e-6)


@pytest.mark.parametrize(
    ("estimate", "size"),
    [
        (lambda r, g: grpo(r, g), 0.8660),
        (lambda r, g: grpo(r, g, unbiased=False), 1.0),
        (rloo, 0.6667),
        (dr_grpo, 0.5),
    ],
    ids=["grpo", "grpo biased", "rloo", "dr_grpo"],
)
def test_one_group_of_four(estimate, size):
    advantages = estimate(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.long))
    close(advantages, [size, -size, -size, size])


def test_one_group_of_eight():
    scores, ids = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0]), torch.full((8,), 5)
    high, low = 1.2073814, -0.7244289
    close(grpo(scores, ids, eps=1e-4), [high, low, low, high, high, low, low, low], atol=1e-6)
    high, low = 0.7142857, -0.4285714
    close(rloo(scores, ids), [high, low, low, high, high, low, low, low], atol=1e-6)


def test_maxrl_divides_by_the_share_that_is_solved():
    """Means 1/4, 3/4, 0, 1; a group of one keeps its score."""
    scores = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0.5])
    ids = torch.tensor([0] * 4 + [1] * 4 + [2] * 2 + [3] * 2 + [4])
    close(maxrl(scores, ids), [3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1, 0, 0, 0, 0, 0.5], atol=1e-7)
    with pytest.raises(ConfigError, match=r"a reward is -0\.5"):
        maxrl(scores - 0.5, ids)


def test_rloo_of_four_samples_for_three_prompts():
    scores_KP = torch.tensor([[1.0, 2, 3], [2, 3, 4], [5, 6, 7], [8, 9, 10]])
    ids_KP = torch.arange(3).expand(4, 3)
    advantages = rloo(scores_KP.flatten(), ids_KP.flatten()).reshape(4, 3)
    close(advantages[0, 0], -4.0, atol=1e-6)
    close(advantages[2, 1], 1.3333)


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", 0.10653, 0.39347), ("k3+", 0.10653, 0.5)],
)
def test_kl_estimators_at_half_a_nat(name, value, gradient):
    logprobs = torch.tensor([-1.0], requires_grad=True)
    estimate = kl.resolve_kl(name).function(logprobs, torch.tensor([-1.5]))
    estimate.sum().backward()
    close(estimate.detach(), [value])
    close(logprobs.grad, [gradient])


def test_kl_estimators_on_three_tokens():
    d = torch.tensor([-0.3315, -0.0426, 0.6351])
    zero = torch.zeros(3)
    close(kl.k3(d, zero), [0.0615561, 0.0009204, 0.1649825], atol=1e-6)
    close(kl.k2(d, zero), [0.0549461, 0.0009074, 0.2016760], atol=1e-6)


def ppo_of(advantage: float, ratio: float, **numbers: float) -> Tensor:
    mask = torch.ones(1, 1, dtype=torch.bool)
    old = torch.full((1, 1), -4.0)
    return ppo_clip(old + torch.tensor(ratio).log(), old, torch.full((1, 1), advantage), mask, **numbers).per_token_BT


def test_ppo_clip_and_dual_clip():
    close(ppo_of(-1.0, 10.0), [[10.0]])
    close(ppo_of(-1.0, 10.0, dual_clip=3.0), [[3.0]])


def test_ppo_clip_higher():
    close(ppo_of(1.0, 1.5), [[-1.2]])
    close(ppo_of(1.0, 1.5, clip_high=0.28), [[-1.28]])


@pytest.mark.parametrize(
    ("probabilities", "advantage", "tv", "kl"),
    [
        ((0.25, 0.5), 1.0, 0.0, 0.0),  # |.25|; .25 ln .5 + .75 ln 1.5 = .1308
        ((0.25, 0.5), -1.0, 2.0, 2.0),  # back towards the old policy
        ((0.5, 0.25), -1.0, 0.0, 0.0),  # .5 ln 2 + .5 ln(2/3) = .1438
        ((0.5, 0.25), 1.0, -0.5, -0.5),
        ((0.01, 0.05), 1.0, -5.0, -5.0),  # a ratio of 5, of .04; .01 ln .2 + .99 ln(.99/.95) = .0247
        ((0.01, 0.15), 1.0, -15.0, 0.0),  # .14; .01 ln(1/15) + .99 ln(.99/.85) = .1239
        ((0.001, 0.1), 1.0, -20.0, 0.0),  # a ratio of 100, capped at 20; .001 ln .01 + .999 ln(.999/.9) = .0996
    ],
)
def test_dppo(probabilities, advantage, tv, kl):
    """The gradient, -A min(rho, 20), where probabilities moved by at most .2, or .05 nats of "this token or not"."""
    old, new = torch.tensor(probabilities).log().reshape(2, 1, 1)
    for divergence, limit, expected in (("tv", 0.2, tv), ("kl", 0.05, kl)):
        logprob = new.clone().requires_grad_()
        bounds = {"divergence": divergence, "clip_low": limit, "clip_high": limit}
        loss = dppo(logprob, old, torch.full((1, 1), advantage), torch.ones(1, 1).bool(), **bounds).per_token_BT
        close(loss, [[expected * float(new)]])
        close(torch.autograd.grad(loss.sum(), logprob)[0], [[expected]])


def test_dppo_at_certainty():
    """A token that became certain has left "another one" no probability, a divergence of infinity; one that was certain
    before has not moved."""
    old, new = torch.tensor([[0.5, 1.0]]).log(), torch.zeros(1, 2)
    loss = dppo(new, old, torch.ones(1, 2), torch.ones(1, 2).bool(), divergence="kl", clip_high=9.0)
    assert loss.metrics["clip_fraction_high"].result() == 0.5


@pytest.mark.parametrize("loss", [ppo_clip, reinforce])
def test_ppo_gradient_at_ratio_one_is_the_reinforce_gradient(loss):
    logits = torch.tensor([1.0, 2.0, 1.0, 1.0], requires_grad=True)
    logprob = torch.log_softmax(logits, dim=0)[1].reshape(1, 1)
    one = torch.ones(1, 1)
    (-loss(logprob, logprob.detach(), one, one.bool()).per_token_BT.sum()).backward()
    close(logits.grad, [-0.1749, 0.5246, -0.1749, -0.1749])


def test_sapo_gate_at_ratio_one():
    close(sapo_gate(torch.tensor(1.0), 1.0), 2.0)
    logprobs = torch.full((1, 1), -2.0)
    close(sapo(logprobs, logprobs, torch.ones(1, 1), torch.ones(1, 1).bool()).per_token_BT, [[-2.0]])


@pytest.mark.parametrize(("share", "least"), [(0.01, 2.0), (0.2, 2.0), (0.5, 1.0), (0.75, 0.5), (1.0, 0.1)])
def test_tokens_of_highest_entropy(share, least):
    """Of six; three quarters of them are four and a half, which are four, or five where two are equal."""
    entropy = torch.tensor([[2.0, 0.5, float("nan")], [1.5, 1.0, 9.0], [0.5, 0.1, 9.0]])
    mask = torch.tensor([[True, True, False], [True, True, False], [True, True, False]])
    assert torch.equal(highest_entropy(entropy, mask, share=share), mask & (entropy >= least))
    assert not highest_entropy(entropy, mask & False, share=share).any()


def test_overlong_penalty():
    penalty = shaping.overlong_penalty(torch.tensor([50, 90, 110]), max_response_tokens=100, buffer_tokens=20)
    close(penalty, [0.0, -0.5, -1.0])


@pytest.mark.parametrize(
    ("measured", "coef"), [(0.0, 0.148464), (6.0, 0.15), (6.6, 0.150768), (7.2, 0.151536), (50.0, 0.151536)]
)
def test_adaptive_kl_of_the_2019_recipe(measured, coef):
    assert kl.AdaptiveKL(0.15, 6.0, 10_000).update(measured, 512) == pytest.approx(coef, abs=1e-12)


def test_adaptive_kl_at_twice_the_target():
    assert kl.AdaptiveKL(0.001, 0.1, 10_000).update(0.2, 1000) == pytest.approx(0.00102, abs=1e-12)


def test_reward_normalisation():
    rewards = [1.0, 2.0, 3.0, 6.0]  # mean 3, biased variance 3.5
    gain, mean = shaping.reward_normalisation(rewards)
    assert (gain, mean) == (pytest.approx(3.5**-0.5), 3.0)
    normal = gain * (torch.tensor(rewards) - mean)
    close(normal.mean(), 0.0, atol=1e-6)
    close(normal.std(correction=0), 1.0, atol=1e-6)
    assert shaping.reward_normalisation(rewards, scale=False) == (1.0, 3.0)
