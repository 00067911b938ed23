import math

import pytest
import torch

from burnish.algorithms.kl import KL_ESTIMATORS, AdaptiveKL, KLController, kl_loss, resolve_kl
from burnish.errors import ConfigError, DivergenceError

LOGPROBS = torch.tensor([[-1.0, -2.0, -0.3]])
REFERENCE = torch.tensor([[-1.5, -1.2, -0.3]])
MASK = torch.tensor([[True, True, True]])


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
def test_the_plus_form_keeps_the_value_and_takes_the_gradient_of_k2(name):
    logprobs = LOGPROBS.clone().requires_grad_()
    plain, plus = resolve_kl(name).function(logprobs, REFERENCE), resolve_kl(f"{name}+").function(logprobs, REFERENCE)
    torch.testing.assert_close(plus, plain)
    (gradient,) = torch.autograd.grad(plus.sum(), logprobs)
    torch.testing.assert_close(gradient, LOGPROBS - REFERENCE)


def test_k1_and_k3_agree_in_the_mean_over_the_policy():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.4, 0.4, 0.2]).log()
    exact = (policy.exp() * (policy - reference)).sum()
    for name in ("k1", "k3"):
        torch.testing.assert_close((policy.exp() * resolve_kl(name).function(policy, reference)).sum(), exact)


def test_k3_is_exact_near_zero_and_finite_far_away():
    tiny = resolve_kl("k3").function(torch.tensor([1e-3]), torch.tensor([0.0]))
    assert tiny.item() == pytest.approx(5e-7, rel=1e-2)
    assert resolve_kl("k3").function(torch.tensor([-500.0]), torch.tensor([0.0])).isfinite().all()


def test_a_misspelt_estimator_gets_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'abs'"):
        resolve_kl("absolut")
    assert set(KL_ESTIMATORS) == {"k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"}


def test_kl_loss_weighted_by_the_ratio():
    plain = kl_loss(LOGPROBS, REFERENCE, MASK, estimator="k2")
    old = LOGPROBS - math.log(2.0)
    torch.testing.assert_close(kl_loss(LOGPROBS, REFERENCE, MASK, estimator="k2", old_logprobs_BT=old), 2 * plain)


def test_adaptive_kl_resumes_from_its_state():
    first = AdaptiveKL(0.15, 6.0, 10_000)
    first.update(torch.tensor(2.0), 512)
    state = first.state_dict()
    assert (state, type(state["coef"])) == ({"coef": first.coef}, float)
    second = AdaptiveKL(0.15, 6.0, 10_000)
    second.load_state_dict(state)
    assert second.update(8.0, 512) == first.update(8.0, 512)


def test_both_controllers_are_called_alike():
    controllers: list[KLController] = [KLController(0.05), AdaptiveKL(0.05, 1.0, 100)]
    assert [c.update(1.0, 4) for c in controllers] == [0.05, 0.05]
    controllers[0].load_state_dict({"coef": 0.01})
    assert controllers[0].coef == 0.01


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: KLController(-0.1), "kl_coef"),
        (lambda: AdaptiveKL(float("nan"), 1, 1), "kl_coef"),
        (lambda: AdaptiveKL(0.1, 0.0, 1), "kl_target"),
        (lambda: AdaptiveKL(0.1, 1.0, 0), "kl_horizon"),
    ],
)
def test_impossible_numbers_name_their_field(make, field):
    with pytest.raises(ConfigError, match=field):
        make()


def test_a_kl_that_is_not_finite_does_not_reach_the_coefficient():
    controller = AdaptiveKL(0.1, 1.0, 100)
    with pytest.raises(DivergenceError, match="nan"):
        controller.update(float("nan"), 4)
    assert controller.coef == 0.1


def test_a_step_that_could_turn_the_coefficient_negative_is_refused():
    """512 responses of a horizon of 100: a KL of 0 would multiply by 1 - .2 x 5.12."""
    controller = AdaptiveKL(0.05, 6.0, 100)
    with pytest.raises(ConfigError, match=r"kl_horizon is 100, but a step has 512 responses.*\n.*above 102\.4"):
        controller.update(0.0, 512)
    assert controller.coef == 0.05
    assert controller.update(0.0, 499) == pytest.approx(0.05 * 0.002)
