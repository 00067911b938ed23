import math

import pytest
import torch
from torch import Tensor

from burnish.algorithms import policy_losses as losses
from burnish.algorithms.aggregation import aggregate
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.errors import ConfigError


def row(values: list[float]) -> Tensor:
    return torch.tensor([values])


def run(loss, ratios: list[float], advantages: list[float], **numbers):
    """Loss, per-token values and gradients at logprobs of -2 for these ratios, everything unmasked."""
    logprobs = torch.full((1, len(ratios)), -2.0, requires_grad=True)
    old = logprobs.detach() - row(ratios).log()
    result = loss(logprobs, old, row(advantages), torch.ones(1, len(ratios), dtype=torch.bool), **numbers)
    result.per_token_BT.sum().backward()
    return result, result.per_token_BT.detach()[0], logprobs.grad[0]


def close(actual: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_ppo_clip_gradient_stops_only_on_the_pessimistic_side():
    _, loss, gradient = run(losses.ppo_clip, [1.5, 0.5, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0])
    close(loss, [-1.2, -0.5, 1.5, 0.8])
    close(gradient, [0.0, -0.5, 1.5, 0.0])


def test_ppo_clip_metrics():
    result, _, _ = run(losses.ppo_clip, [1.5, 0.5, 1.5, 0.5, 1.0], [1.0, 1.0, -1.0, -1.0, 1.0])
    k3_of_old = [0.5 - math.log(1.5), -0.5 - math.log(0.5)]  # rho - 1 - log rho
    expected = {
        **{"clip_fraction": 0.4, "clip_fraction_low": 0.2, "clip_fraction_high": 0.2},
        **{"ratio_mean": 1.0, "ratio_max": 1.5, "ratio_min": 0.5, "approx_kl": 2 * sum(k3_of_old) / 5},
    }
    assert {name: result.metrics[name].result() for name in expected} == pytest.approx(expected, abs=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_tokens_and_counts_them():
    result, loss, gradient = run(losses.ppo_clip, [10.0, 2.0], [-1.0, -1.0], dual_clip=3.0)
    close(loss, [3.0, 2.0])
    close(gradient, [0.0, 2.0])
    assert result.metrics["clip_fraction_dual"].result() == pytest.approx(0.5)


def test_ratio_cap_bounds_the_unclipped_term_only():
    _, loss, gradient = run(losses.ppo_clip, [10.0, 10.0], [-1.0, 1.0], ratio_cap=4.0)
    close(loss, [4.0, -1.2])
    close(gradient, [0.0, 0.0])


def test_reinforce_and_its_sequence_form():
    _, loss, gradient = run(losses.reinforce, [1.0, 3.0], [2.0, 2.0])
    close(loss, [4.0, 4.0])
    close(gradient, [-2.0, -2.0])
    assert aggregate(row([4.0, 4.0]), ALL[:, :2], "sequence_mean_token_sum").item() == pytest.approx(-2.0 * -4.0)


def test_gspo_is_the_length_normalised_sequence_ratio_with_the_gradient_of_the_mean():
    result, loss, gradient = run(losses.gspo, [1.2, 0.8, 1.1], [1.0] * 3, clip_low=0.5, clip_high=0.5)
    s = (1.2 * 0.8 * 1.1) ** (1 / 3)
    close(loss, [-s] * 3)
    close(gradient / 3, [-s / 3] * 3)  # sequence_mean_token_mean divides by the length: d(-s)/d logprob_t = -s / 3
    assert result.metrics["ratio_max"].result() == pytest.approx(s)


def test_gspo_clips_the_whole_sequence():
    result, loss, gradient = run(losses.gspo, [1.5, 1.5], [1.0, 1.0])
    close(loss, [-1.0004, -1.0004])
    close(gradient, [0.0, 0.0])
    assert result.metrics["clip_fraction_high"].result() == 1.0


def test_gmpo_bounds_each_token_in_log_space_before_the_mean():
    result, loss, gradient = run(losses.gmpo, [math.e, 1.0], [1.0, 1.0])
    g = math.exp(0.2)  # (0.4 + 0) / 2
    close(loss, [-g, -g])
    close(gradient, [0.0, -g])
    assert result.metrics["clip_fraction_high"].result() == pytest.approx(0.5)
    _, loss, _ = run(losses.gmpo, [math.e, math.exp(-1)], [-1.0, -1.0])
    close(loss, [math.exp(0.3)] * 2)  # (1 - 0.4) / 2: only the lower side is bounded for a bad response


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    result, loss, gradient = run(losses.cispo, [10.0, 0.1], [1.0, -1.0])
    close(loss, [10.0, -0.2])
    close(gradient, [-5.0, 0.1])
    assert result.metrics["clip_fraction_high"].result() == pytest.approx(0.5)
    _, _, gradient = run(losses.cispo, [0.1], [1.0], clip_low=0.2)
    close(gradient, [-0.8])


def test_tis_and_topr_differ_on_good_responses():
    _, _, gradient = run(losses.tis, [0.5, 3.0, 0.5, 3.0], [1.0, 1.0, -1.0, -1.0])
    close(gradient, [-0.5, -1.0, 0.5, 1.0])
    _, _, gradient = run(losses.topr, [0.5, 3.0, 0.5, 3.0], [1.0, 1.0, -1.0, -1.0])
    close(gradient, [-1.0, -1.0, 0.5, 1.0])


def test_sapo_takes_tau_by_the_sign_of_the_advantage():
    _, loss, gradient = run(losses.sapo, [1.0, 1.0, 2.0], [1.0, -1.0, 1.0])
    close(loss, [-2.0, 2 / 1.05, -4 * torch.sigmoid(torch.tensor(1.0)).item()])
    close(gradient[:2], [-1.0, 1.0])  # slope 1 at ratio 1 whatever tau


def test_kimi_pulls_towards_the_old_policy():
    _, loss, gradient = run(losses.kimi, [math.e], [0.5], tau=0.2)
    close(loss, [1.0 + 0.1])
    close(gradient, [-0.5 + 0.2])


ALL = torch.ones(1, 4, dtype=torch.bool)
COVARIANCE_LOGPROBS = row([-1.0, -3.0, -2.0, -2.0])
COVARIANCE_ADVANTAGES = row([1.0, -1.0, 2.0, -2.0])  # means -2 and 0: covariances 1, 1, 0, 0


def test_covariance_selection_takes_the_highest_and_all_ties():
    chosen = losses.covariance_selection(COVARIANCE_LOGPROBS, COVARIANCE_ADVANTAGES, ALL, fraction=0.25)
    assert chosen.tolist() == [[True, True, False, False]]


def test_covariance_selection_respects_bounds_and_mask():
    high = losses.covariance_selection(
        row([0.0, -4.0, -1.0, -3.0]), row([2.0, -2.0, 1.0, -1.0]), ALL, fraction=1.0, covariance_high=3.0
    )
    assert high.tolist() == [[False, False, True, True]]  # covariances 4, 4, 1, 1
    mask = torch.tensor([[True, True, True, False]])
    assert not losses.covariance_selection(COVARIANCE_LOGPROBS, COVARIANCE_ADVANTAGES, mask, fraction=1.0)[0, 3]
    with pytest.raises(ConfigError, match="fraction"):
        losses.covariance_selection(COVARIANCE_LOGPROBS, COVARIANCE_ADVANTAGES, mask, fraction=0.0)


@pytest.mark.parametrize(
    ("loss", "options"),
    [(losses.kimi, {"tau": -0.1}), (losses.kl_cov, {"coef": -1.0}), (losses.sapo, {"tau_negative": 0.0})],
)
def test_factors_that_would_turn_a_penalty_around_are_refused(loss, options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))}.* {loss.__name__}"):
        run(loss, [2.0], [1.0], **options)


def test_kl_cov_penalises_selected_tokens():
    result, loss, _ = run(losses.kl_cov, [2.0, 2.0], [1.0, 1.0], coef=0.5, selection_BT=torch.tensor([[True, False]]))
    close(loss, [-2.0 + 0.5 * math.log(2.0), -2.0])
    assert result.metrics["selected_fraction"].result() == 0.5


def test_clip_cov_drops_selected_tokens():
    _, loss, gradient = run(losses.clip_cov, [1.1, 1.1], [1.0, 1.0], selection_BT=torch.tensor([[True, False]]))
    close(loss, [0.0, -1.1])
    close(gradient, [0.0, -1.1])


def test_clip_cov_leaves_out_what_the_clip_holds_already():
    """Covariances 4, 4, 1, 1. The first token gained 1.25 and is clipped, the second lost but is not yet: it takes
    the one place. As in the authors' code; the means, and the number to choose, are over all tokens."""
    logprobs, advantages = row([0.0, -4.0, -1.0, -3.0]), row([2.0, -2.0, 1.0, -1.0])
    old = logprobs - torch.log(row([1.25, 0.9, 1.0, 1.0]))
    inputs, numbers = (logprobs, old, advantages, ALL), {"fraction": 0.25, "covariance_low": 0.5}
    chosen = losses.unclipped_selection(*inputs, **numbers)
    assert chosen.tolist() == [[False, True, False, False]]
    torch.testing.assert_close(losses.clip_cov(*inputs, **numbers).per_token_BT, row([-2.4, 0.0, -1.0, 1.0]))
    wider = losses.unclipped_selection(*inputs, **numbers, clip_high=0.3)
    assert wider.tolist() == [[True, True, False, False]]  # both of the highest: a tie
    assert POLICY_LOSSES["clip_cov"].select(*inputs, numbers).tolist() == chosen.tolist()


def test_the_share_of_clamped_ratios_is_told():
    """Log-ratios 20.5, -21, 19.5, and one that is masked."""
    old = row([-30.0, -1.0, -20.5, -50.0])
    logprobs = (old + row([20.5, -21.0, 19.5, 45.0])).requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    result = losses.ppo_clip(logprobs, old, row([-1.0, 1.0, -1.0, -1.0]), mask)
    assert result.metrics["ratio_clamped_fraction"].result() == pytest.approx(2 / 3)
    (gradient,) = torch.autograd.grad(result.per_token_BT.sum(), logprobs)
    assert gradient[0, :2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["kl_cov", "clip_cov"])
def test_the_row_selects_over_the_minibatch_what_the_loss_would_select_itself(name):
    row_ = POLICY_LOSSES[name]
    options = {"fraction": 0.5} | ({"covariance_low": 0.5} if name == "clip_cov" else {})
    chosen = row_.select(COVARIANCE_LOGPROBS, COVARIANCE_LOGPROBS, COVARIANCE_ADVANTAGES, ALL, options)
    inputs = (COVARIANCE_LOGPROBS, COVARIANCE_LOGPROBS - 0.1, COVARIANCE_ADVANTAGES, ALL)
    by_itself, handed = (row_.function(*inputs, **options, **given) for given in ({}, {"selection_BT": chosen}))
    torch.testing.assert_close(handed.per_token_BT, by_itself.per_token_BT)
    assert chosen.sum() == 2
    assert row_.selection
    assert "selection_BT" not in row_.options


def test_losses_that_select_nothing_say_so():
    assert not POLICY_LOSSES["ppo_clip"].selection
    assert POLICY_LOSSES["ppo_clip"].select(*[torch.ones(1, 1)] * 4, {}) is None


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_extreme_log_ratios_stay_finite(name):
    logprobs = row([-1000.0, 0.0, -50.0]).requires_grad_()
    old = row([0.0, -1000.0, -1.0])
    for sign in (1.0, -1.0):
        result = POLICY_LOSSES[name].function(logprobs, old, torch.full((1, 3), sign), ALL[:, :3])
        (gradient,) = torch.autograd.grad(result.per_token_BT.sum(), logprobs)
        assert result.per_token_BT.isfinite().all()
        assert gradient.isfinite().all()
        assert all(math.isfinite(metric.result()) for metric in result.metrics.values())


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_neither_old_logprobs_nor_advantages_carry_a_gradient(name):
    logprobs = row([-1.0, -2.0]).requires_grad_()
    old, advantages = row([-1.2, -1.9]).requires_grad_(), row([1.0, -1.0]).requires_grad_()
    loss = POLICY_LOSSES[name].function(logprobs, old, advantages, torch.ones(1, 2, dtype=torch.bool))
    assert torch.autograd.grad(loss.per_token_BT.sum(), [old, advantages], allow_unused=True) == (None, None)
