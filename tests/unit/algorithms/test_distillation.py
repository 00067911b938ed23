"""On-policy distillation, by hand."""

import math

import pytest
import torch

from burnish.algorithms.advantages import best_of_n, online_dpo, opd

MASK = torch.tensor([[True, True, False]])
TEACHER = torch.tensor([[math.log(0.5), math.log(0.1), math.nan]])
OLD = torch.tensor([[math.log(0.25), math.log(0.2), math.nan]])
REWARDS = torch.tensor([[0.0, 3.0, 0.0]])


def test_a_token_gains_what_the_teacher_likes_more_than_the_policy_did():
    advantages, returns = opd(REWARDS, TEACHER, OLD, MASK)
    torch.testing.assert_close(advantages, torch.tensor([[math.log(2), -math.log(2), 0.0]]))
    assert torch.equal(advantages, returns)


def test_a_teacher_has_a_weight_and_rewards_are_added_on_request():
    weighted, _ = opd(REWARDS, TEACHER, OLD, MASK, torch.tensor([0.5]))
    torch.testing.assert_close(weighted, torch.tensor([[math.log(2) / 2, -math.log(2) / 2, 0.0]]))
    added, _ = opd(REWARDS, TEACHER, OLD, MASK, reward_coef=0.1)
    torch.testing.assert_close(added, torch.tensor([[math.log(2) + 0.3, -math.log(2) + 0.3, 0.0]]))


def test_the_expected_gradient_is_that_of_the_reverse_kl():
    """Over all tokens of a small vocabulary: sum_y S(y) (log T(y) - log S(y)) grad log S(y) = -grad KL(S || T)."""
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    student, teacher = logits.log_softmax(0), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    column, mask = torch.zeros(3, 1), torch.ones(3, 1, dtype=torch.bool)
    advantages, _ = opd(column, teacher[:, None], student.detach()[:, None], mask)
    loss = -(student.exp().detach() * advantages[:, 0] * student).sum()
    (estimated,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (exact,) = torch.autograd.grad((student.exp() * (student - teacher)).sum(), logits)
    assert estimated.numpy() == pytest.approx(exact.numpy(), abs=1e-12)


GROUPS = torch.tensor([0, 0, 0, 7, 7])


def test_one_of_each_group_is_kept_the_first_of_equal_ones():
    scores = torch.tensor([1.0, 2.0, 2.0, 5.0, 5.0])
    assert best_of_n(scores, GROUPS).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]  # none of a group of equal scores
    assert best_of_n(scores, GROUPS, above=1.5).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_online_dpo_by_hand():
    """Best and worst of the first group: log ratios 0.5 and -1.5, so h = 0.2 and the weight is .1 s(-.2) = .0450166."""
    scores = torch.tensor([3.0, 1.0, 2.0, 4.0, 4.0])
    old = torch.tensor([[-1.0, -1.0], [-2.0, -2.5], [-9.0, 0.0], [-1.0, 0.0], [-3.0, 0.0]])
    reference = torch.tensor([[-1.5, -1.0], [-2.0, -1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    advantages = online_dpo(scores, GROUPS, old, reference, torch.ones(5, 2, dtype=torch.bool))
    expected = [0.0450166, -0.0450166, 0.0, 0.0, 0.0]
    assert advantages.tolist() == pytest.approx(expected, abs=1e-7)


def test_online_dpo_is_the_gradient_of_dpo():
    policy = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-1.2, -1.0], [-0.7, -2.0]], dtype=torch.float64)
    mask, groups = torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 0])
    advantages = online_dpo(torch.tensor([1.0, 0.0]), groups, policy.detach(), reference, mask, beta=0.3)
    (ours,) = torch.autograd.grad(-(advantages[:, None] * policy).sum(), policy)
    best, worst = (policy - reference).sum(dim=1)
    (exact,) = torch.autograd.grad(-torch.nn.functional.logsigmoid(0.3 * (best - worst)), policy)
    torch.testing.assert_close(ours, exact)
