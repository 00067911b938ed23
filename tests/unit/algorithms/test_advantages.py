import pytest
import torch
from estimates import estimate

from burnish.algorithms import advantages as estimators
from burnish.algorithms.advantages import ESTIMATORS
from burnish.config.names import GROUP_ESTIMATORS
from burnish.errors import ConfigError


@pytest.mark.parametrize("name", [name for name in GROUP_ESTIMATORS if name != "maxrl"])
def test_a_group_of_one_is_an_error_unless_its_siblings_failed(name):
    step = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([7, 7, 41]), torch.ones(3)
    with pytest.raises(ConfigError, match=rf"(?s){name}.*group_id 41.*group_size"):
        estimate(name, *step)
    advantages = estimate(name, *step, allow_single=True)
    assert not advantages[2].any()
    assert advantages[0].sum() > 0


def test_opo_weighs_the_baseline_by_length():
    advantages = estimators.opo(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([1, 3]))
    assert advantages.tolist() == [0.75, -0.25]


def test_opo_of_a_group_without_trained_tokens_is_finite():
    advantages = estimators.opo(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert advantages.isfinite().all()


def test_gpg_makes_up_for_groups_without_a_signal():
    advantages = estimators.gpg(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    assert advantages.tolist() == [1.0, -1.0, 0.0, 0.0]


def test_passk_trains_the_single_best():
    ids = torch.zeros(4, dtype=torch.long)
    assert estimators.passk(torch.tensor([1.0, 4.0, 3.0, 0.0]), ids).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert estimators.passk(torch.tensor([4.0, 4.0, 3.0, 0.0]), ids).tolist() == [0.0] * 4
    normalised = estimators.passk(torch.tensor([1.0, 4.0, 3.0, 0.0]), ids, normalise=True, eps=0.0)
    assert normalised[1].item() == pytest.approx(1 / (10 / 3) ** 0.5)  # deviations -1, 2, 1, -2 of the mean 2


def test_grpo_batch_std_takes_the_scale_of_the_step():
    advantages = estimators.grpo_batch_std(torch.tensor([0.0, 2.0, 4.0, 6.0]), torch.tensor([0, 0, 1, 1]), eps=0.0)
    std = (20 / 3) ** 0.5
    torch.testing.assert_close(advantages, torch.tensor([-1.0, 1.0, -1.0, 1.0]) / std)


def test_reinforce_plus_plus_baseline_has_unit_scale_over_the_step():
    advantages = estimators.reinforce_plus_plus_baseline(torch.tensor([0.0, 2.0, 0.0, 4.0]), torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(advantages, torch.tensor([-1.0, 1.0, -2.0, 2.0]) / 2.5**0.5)


def test_gdpo_keeps_combinations_of_equal_sum_apart():
    parts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    ids, weights = torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 0.5])
    advantages = estimators.gdpo(parts, ids, weights, eps=0.0)
    # each component standardised: 1.5 and -0.5 (std 0.5); sums with weights 1 and 1/2
    expected = torch.tensor([1.25, 0.25, -0.75, -0.75])
    torch.testing.assert_close(advantages, expected / expected.square().mean().sqrt())


def test_gdpo_wants_one_weight_for_each_component():
    with pytest.raises(ValueError, match="weights of shape"):
        estimators.gdpo(torch.ones(2, 3), torch.zeros(2, dtype=torch.long), torch.ones(2))


def test_baselines_that_need_no_group():
    assert estimators.remax(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])).tolist() == [0.5, -0.5]
    assert estimators.raw(torch.tensor([1.0, 0.0]), baseline=0.25).tolist() == [0.75, -0.25]


def test_remax_by_token_takes_the_greedy_score_off_the_return_to_go():
    """KL penalties of .1, .2 and .3 and a score of 1 at the end; greedy .5. The second row has two tokens, no KL."""
    rewards = torch.tensor([[-0.1, -0.2, 0.7], [0.0, 1.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    tensors = {"token_rewards_BT": rewards, "greedy_scores_B": torch.tensor([0.5, 0.25]), "mask_BT": mask}
    advantages, returns = ESTIMATORS["remax"](tensors, {})
    torch.testing.assert_close(returns, torch.tensor([[0.4, 0.5, 0.7], [1.0, 1.0, 0.0]]))
    torch.testing.assert_close(advantages, torch.tensor([[-0.1, 0.0, 0.2], [0.75, 0.75, 0.0]]))


def test_scores_and_ids_of_different_length_are_refused():
    with pytest.raises(ValueError, match="group_ids"):
        estimators.rloo(torch.ones(3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="greedy"):
        estimators.remax(torch.ones(3), torch.ones(1))


def test_returns_to_go_skip_masked_spans():
    rewards = torch.tensor([[1.0, 100.0, 2.0, 100.0]])
    mask = torch.tensor([[True, False, True, False]])
    assert estimators.discounted_returns(rewards, mask, gamma=0.5).tolist() == [[2.0, 0.0, 2.0, 0.0]]


def test_gae_carries_value_and_advantage_through_a_masked_span():
    rewards, values = torch.tensor([[0.1, 0.2, 0.3]]), torch.tensor([[0.5, 0.4, 0.6]])
    advantages, returns = estimators.gae(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=0.9, lam=0.8)
    gapped = torch.tensor([[True, False, False, True, True, False]])
    index = gapped.nonzero()[:, 1]
    wide_rewards, wide_values = torch.full((1, 6), 9.0), torch.full((1, 6), -7.0)
    wide_rewards[:, index], wide_values[:, index] = rewards, values
    wide_advantages, wide_returns = estimators.gae(wide_rewards, wide_values, gapped, gamma=0.9, lam=0.8)
    torch.testing.assert_close(wide_advantages[:, index], advantages)
    torch.testing.assert_close(wide_returns[:, index], returns)
    assert wide_returns[~gapped].tolist() == [0.0, 0.0, 0.0]


def test_reinforce_plus_plus_returns_the_returns_unwhitened():
    rewards, mask = torch.tensor([[0.0, 2.0], [0.0, -2.0]]), torch.ones(2, 2, dtype=torch.bool)
    advantages, returns = estimators.reinforce_plus_plus(rewards, mask)
    assert returns.tolist() == [[2.0, 2.0], [-2.0, -2.0]]
    torch.testing.assert_close(advantages, returns / 2)


def test_what_estimators_need_is_read_from_their_signatures():
    gae = ESTIMATORS["gae"]
    assert gae.inputs == ("token_rewards_BT", "values_BT", "mask_BT", "turn_index_BT")
    assert (gae.optional_inputs, gae.options) == ({"turn_index_BT"}, {"gamma": 1.0, "lam": 0.95})
    assert gae.needs_values
    assert gae.token_level
    assert ESTIMATORS["opo"].inputs == ("scores_B", "group_ids_B", "lengths_B")
    assert not ESTIMATORS["opo"].token_level


def test_a_missing_input_and_an_unknown_option_are_named():
    with pytest.raises(ConfigError, match="needs group_ids_B"):
        ESTIMATORS["grpo"]({"scores_B": torch.ones(2)}, {})
    with pytest.raises(ConfigError, match="did you mean 'unbiased'"):
        ESTIMATORS["grpo"]({"scores_B": torch.ones(2), "group_ids_B": torch.zeros(2)}, {"unbaised": True})
