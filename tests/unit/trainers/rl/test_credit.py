"""From scores to advantages: hand-computed numbers in the stated order of operations."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from plain_samples import ones_batch

from burnish.algorithms.advantages import resolve_estimator
from burnish.config import names
from burnish.config.schema import AlgorithmConfig, RlConfig
from burnish.errors import ConfigError
from burnish.forward.batch import Batch
from burnish.trainers.rl.algorithm import resolve_algorithm
from burnish.trainers.rl.batching import BatchRewards
from burnish.trainers.rl.credit import assign_advantages, whiten_minibatch
from burnish.trainers.rl.setup.preflight import check_estimator


def four_rows(groups: Sequence[int] = (7, 7, 9, 9), **fields: torch.Tensor) -> Batch:
    """Two groups of two; responses of 2, 1, 2 and 2 tokens."""
    lengths, group_ids = torch.tensor([2, 1, 2, 2]), torch.tensor(groups)
    return ones_batch(torch.arange(2) < lengths.unsqueeze(1), response_lengths=lengths, group_ids=group_ids, **fields)


def without_row_1(batch: Batch) -> Batch:
    """The same batch, of which the loss leaves out a row."""
    mask = batch.loss_mask.clone()
    mask[1] = False
    return batch.replace(loss_mask=mask)


def with_kl() -> Batch:
    """The four rows, with d = old - ref of .1 on every token."""
    return four_rows(old_logprobs=torch.full((4, 2), -1.0), ref_logprobs=torch.full((4, 2), -1.1))


IN_REWARD = {"kl_in": "reward", "kl_coef": 1.0, "kl_estimator": "k1"}


def run(scores: list[float], batch: Batch | None = None, outcome: Any = None, **settings: Any):  # type: ignore[no-untyped-def]
    """The batch with advantages, and the metrics. `outcome`: what the rewards hold beside the scores."""
    algorithm = AlgorithmConfig(**settings)
    return assign_advantages(
        four_rows() if batch is None else batch,
        BatchRewards(scores_B=torch.tensor(scores), **(outcome or {})),
        algorithm=algorithm,
        estimator=resolve_estimator(algorithm.estimator),
        kl_coef=settings.get("kl_coef", 0.0),
    )


def three_samples(**fields: torch.Tensor) -> Batch:
    """One group of three samples, the first of which has two rows of 2 and 1 tokens."""
    return four_rows((7, 7, 7, 7), **fields)


TWO_ROWS = {"counted_B": torch.tensor([0, 0, 2, 3])}
GREEDY = {"greedy_scores_B": torch.tensor([0.5, 0.5, 1.0, 1.0])}
ROOT = 2**0.5
WHITE = {"whiten_rewards": True}


@pytest.mark.parametrize(
    ("settings", "scores", "batch", "outcome", "expected"),
    [
        ({"estimator": "dr_grpo", "reward_clip": 1.0}, [5.0, 0.0, -9.0, 0.0], four_rows(), {}, [0.5, -0.5, -0.5, 0.5]),
        ({"estimator": "remax"}, [1.0, 0.0, 1.0, 0.0], four_rows(), GREEDY, [0.5, -0.5, 0.0, -1.0]),
        ({"estimator": "grpo"}, [1.0, 0.0, 0.0, 0.0], four_rows((7, 8, 9, 9)), {}, [0.0, 0.0, 0.0, 0.0]),
        # 3 - 1, and 3 - 0 and 0 - 1.5: the sample of two rows counts once
        ({"estimator": "dr_grpo"}, [3.0, 3.0, 0.0, 0.0], three_samples(), TWO_ROWS, [2.0, 2.0, -1.0, -1.0]),
        ({"estimator": "rloo"}, [3.0, 3.0, 0.0, 0.0], three_samples(), TWO_ROWS, [3.0, 3.0, -1.5, -1.5]),
        # OPO's baseline weighs by length: 2 + 1, 2 and 2 tokens of 7. 3 x 3 / 7 = 9 / 7
        ({"estimator": "opo"}, [3.0, 3.0, 0.0, 0.0], three_samples(), TWO_ROWS, [12 / 7, 12 / 7, -9 / 7, -9 / 7]),
        # scores 3 1 | 2 2: mean 2, deviation sqrt(1/2); half the difference in the first group is sqrt(2)
        ({"estimator": "dr_grpo", **WHITE}, [3.0, 1.0, 2.0, 2.0], four_rows(), {}, [ROOT, -ROOT, 0, 0]),
        ({"estimator": "raw", **WHITE}, [3.0, 1.0, 2.0, 2.0], four_rows(), {}, [2 + ROOT, 2 - ROOT, 2, 2]),
    ],
    ids=[
        "clipped before",
        "remax",
        "alone",
        "counts once",
        "of the others",
        "all its tokens",
        "whitened",
        "keeps mean",
    ],
)
def test_advantages_by_hand(settings, scores, batch, outcome, expected) -> None:
    credited, _ = run(scores, batch, outcome, **settings)
    assert credited.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_an_outcome_advantage_stands_on_every_trained_token_and_nowhere_else() -> None:
    batch, _ = run([1.0, 0.0, 3.0, 3.0], estimator="dr_grpo")
    assert batch.advantages.tolist() == [[0.5, 0.5], [-0.5, 0.0], [0.0, 0.0], [0.0, 0.0]]


def test_advantages_are_clipped_last() -> None:
    batch, metrics = run([1.0, 0.0, 0.0, 4.0], estimator="dr_grpo", advantage_clip=0.25)
    assert batch.advantages[:, 0].tolist() == [0.25, -0.25, -0.25, 0.25]
    assert metrics["advantage/absolute_max"].result() == 0.25
    assert metrics["advantage/raw_square_mean"].result() == pytest.approx((2 * 0.25 + 0.25 + 4 * 4.0) / 7)


def test_the_kl_in_the_reward_enters_the_score_of_outcome_estimators() -> None:
    """A response of n tokens loses coef * .1 * n: scores of -.2 and -.1 in the first group. A row that is left out of
    the loss carries the same KL as its siblings."""
    scored, _ = run([0.0] * 4, with_kl(), estimator="dr_grpo", **IN_REWARD)
    torch.testing.assert_close(scored.advantages[:, 0], torch.tensor([-0.05, 0.05, 0.0, 0.0]))
    torch.testing.assert_close(
        scored.token_rewards, torch.tensor([[-0.1, -0.1], [-0.1, 0.0], [-0.1, -0.1], [-0.1, -0.1]])
    )
    left_out, _ = run([0.0] * 4, without_row_1(with_kl()), estimator="dr_grpo", **IN_REWARD)
    torch.testing.assert_close(left_out.advantages[:2], torch.tensor([[-0.05, -0.05], [0.0, 0.0]]))


def test_returns_to_go_are_whitened_over_the_step() -> None:
    batch, _ = run([1.0, 0.0, 1.0, 0.0], estimator="reinforce_plus_plus")
    trained = batch.advantages[batch.loss_mask]
    assert float(trained.mean()) == pytest.approx(0.0, abs=1e-6)
    # returns are 1 1 | 0 | 1 1 | 0 0: mean 4/7, biased variance 12/49
    assert float(batch.advantages[0, 0]) == pytest.approx((3 / 7) / math.sqrt(12 / 49), abs=1e-4)
    assert batch.returns is not None


def test_dense_rewards_replace_the_score_on_the_last_token() -> None:
    dense = torch.tensor([[0.25, 0.75], [0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    batch, _ = run([1.0, 0.5, 0.0, 0.0], outcome={"dense_rewards_BT": dense}, estimator="reinforce_plus_plus")
    assert batch.token_rewards.tolist() == dense.tolist()


@pytest.mark.parametrize(("estimator", "score", "advantage"), [("dr_grpo", 1.0, 0.5), ("opo", 3.0, 1.0)])
def test_a_row_left_out_of_the_loss_still_counts_in_its_group(estimator: str, score: float, advantage: float) -> None:
    """The baseline of OPO is 2: lengths 2 and 1, scores 3 and 0."""
    scored, _ = run([score, 0.0, 0.0, 0.0], without_row_1(four_rows()), estimator=estimator)
    assert scored.advantages.tolist()[:2] == [[advantage] * 2, [0.0, 0.0]]


def test_remax_charges_a_token_for_the_kl_from_itself_onwards() -> None:
    """A score of 1 and a greedy score of .5, coefficient 1."""
    greedy = {"greedy_scores_B": torch.full((4,), 0.5)}
    scored, _ = run([1.0] * 4, with_kl(), greedy, estimator="remax", **IN_REWARD)
    expected = torch.tensor([[0.3, 0.4], [0.4, 0.0], [0.3, 0.4], [0.3, 0.4]])
    torch.testing.assert_close(scored.advantages, expected)


def test_an_estimator_that_lacks_its_input_says_so() -> None:
    with pytest.raises(ConfigError, match="greedy_scores_B"):
        run([1.0, 0.0, 1.0, 0.0], estimator="remax")


def test_a_misspelt_option_of_the_estimator_is_refused() -> None:
    with pytest.raises(ConfigError, match="unbiassed"):
        resolve_algorithm(AlgorithmConfig(estimator="grpo", estimator_options={"unbiassed": False}))


@pytest.mark.parametrize(
    ("loss", "options", "what"),
    [
        ("ppo_clip", {"dual_clip": 1}, "dual_clip is 1"),
        ("ppo_clip", {"ratio_cap": 1.1}, "ratio_cap is 1.1 with clip_high 0.2"),
        ("cispo", {"ratio_cap": 1.0}, "ratio_cap of cispo is 1.0"),
        ("cispo", {"ratio_cap": None}, "ratio_cap of 'cispo' is null"),
        ("tis", {"ratio_low": 2.0, "ratio_high": 1.0}, r"ratio bounds of tis are \[2.0, 1.0\]"),
        ("topr", {"ratio_high": float("inf")}, r"ratio bounds of topr are \[0.0, inf\]"),
        ("clip_cov", {"fraction": 2.0}, "fraction of selected tokens is 2.0"),
        ("sapo", {"tau_negative": 0.0}, "tau_positive and tau_negative of sapo are"),
        ("kl_cov", {"fraction": 0.0}, "fraction of selected tokens is 0.0"),
    ],
)
def test_options_of_the_loss_out_of_range_are_refused_before_the_first_update(loss, options, what) -> None:
    with pytest.raises(ConfigError, match=what):
        resolve_algorithm(AlgorithmConfig(loss=loss, loss_options=options))


def test_gae_takes_score_kl_and_values_to_the_golden_numbers() -> None:
    """d = .5, -.2, .3 at coefficient .1 and a score of .43 make the rewards -.05, .02, .4. What stands in the slots
    past the end, values among it, changes nothing, and nothing is rewarded there."""
    old, nan = torch.tensor([[-1.2, -0.7, -2.0, 0.0, 0.0]]), float("nan")
    batch = ones_batch(
        torch.tensor([[True, True, True, False, False]]),
        response_lengths=torch.tensor([3]),
        old_logprobs=old,
        ref_logprobs=old - torch.tensor([[0.5, -0.2, 0.3, nan, nan]]),
        values=torch.tensor([[0.1, 0.2, 0.3, nan, 7.0]]),
    )
    credited, metrics = run([0.43], batch, estimator="gae", **(IN_REWARD | {"kl_coef": 0.1}), whiten_advantages=True)
    torch.testing.assert_close(credited.token_rewards, torch.tensor([[-0.05, 0.02, 0.4, 0.0, 0.0]]))
    torch.testing.assert_close(credited.returns, torch.tensor([[0.35425, 0.415, 0.4, 0.0, 0.0]]))
    assert metrics["advantage/raw_mean"].result() == pytest.approx((0.25425 + 0.215 + 0.1) / 3)
    torch.testing.assert_close(
        credited.advantages, torch.tensor([[0.98541, 0.38576, -1.37117, 0.0, 0.0]]), atol=1e-4, rtol=0
    )


def test_an_estimator_that_asks_for_values_must_give_returns() -> None:
    with pytest.raises(ConfigError, match="no returns to train a critic with"):
        check_estimator(RlConfig(model={"path": "m"}), resolve_estimator(f"{__name__}:values_only"))


def values_only(scores_B: torch.Tensor, values_BT: torch.Tensor) -> torch.Tensor:
    """Asks for values and returns one advantage a sequence."""
    return scores_B - values_BT[:, 0]


def test_an_outcome_estimator_sees_the_clipped_sum_of_dense_rewards() -> None:
    """Token rewards 3 and -2.5 sum to .5, inside the clip of 1; clipped one by one they would sum to 0."""
    dense = {"dense_rewards_BT": torch.tensor([[3.0, -2.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])}
    batch = four_rows(old_logprobs=torch.zeros(4, 2), ref_logprobs=torch.zeros(4, 2))
    scored, _ = run([0.5, 0.0, 0.0, 0.0], batch, dense, estimator="dr_grpo", **IN_REWARD, reward_clip=1.0)
    assert scored.advantages[:, 0].tolist() == [0.25, -0.25, 0.0, 0.0]


def test_each_option_logs_what_it_changed() -> None:
    changes = {"reward_clip": 2.0, "whiten_rewards": True, "advantage_clip": 0.5}
    _, metrics = run([5.0, 0.0, 0.0, 0.0], estimator="raw", **changes)
    assert metrics["reward/clipped_fraction"].result() == 0.25
    assert metrics["reward/score_std"].result() == pytest.approx(math.sqrt(3 / 4))  # scores 2 0 0 0
    assert metrics["advantage/clipped_fraction"].result() is not None
    _, plain = run([5.0, 0.0, 0.0, 0.0], estimator="raw")
    assert not {"reward/clipped_fraction", "reward/score_std", "advantage/clipped_fraction"} & set(plain)


def test_an_estimator_of_tokens_logs_the_deviation_of_the_token_rewards() -> None:
    _, metrics = run([5.0, 0.0, 0.0, 0.0], estimator="reinforce_plus_plus", reward_clip=2.0, whiten_rewards=True)
    # token rewards 0 2 | 0 | 0 0 | 0 0: mean 2/7, variance 4/7 - 4/49
    assert metrics["reward/token_std"].result() == pytest.approx(math.sqrt(24 / 49))


@pytest.mark.parametrize("name", [name for name in names.GROUP_ESTIMATORS if name not in names.TURN_ESTIMATORS])
def test_whitened_rewards_leave_equal_scores_of_unequal_lengths_without_advantage(name: str) -> None:
    """Whitened by token the group of equal scores got [.89, -1.40] and the like: longer responses more."""
    parts = {"parts_BC": torch.tensor([[123.4], [123.4], [0.0], [1.0]]), "weights_C": torch.ones(1)}
    scored, _ = run([123.4, 123.4, 0.0, 1.0], with_kl(), parts, estimator=name, whiten_rewards=True)
    assert scored.advantages[:2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert scored.advantages[3, 0] > 0


def test_rewards_are_recorded_in_their_own_units() -> None:
    scored, _ = run([3.0, 1.0, 2.0, 2.0], estimator="dr_grpo", whiten_rewards=True)
    assert scored.token_rewards[0].tolist() == [0.0, 3.0]


def test_whitened_scores_hold_the_kl_of_their_tokens() -> None:
    """-.2, -.1, -.2, -.2, mean -.175, deviation .0433."""
    scored, _ = run([0.0] * 4, with_kl(), estimator="dr_grpo", **IN_REWARD, whiten_rewards=True)
    half = 0.05 / math.sqrt(3 / 16 * 0.01)
    torch.testing.assert_close(scored.advantages[:2, 0], torch.tensor([-half, half]), rtol=1e-4, atol=0)


def test_the_spread_of_advantages_far_from_zero_keeps_its_digits() -> None:
    _, metrics = run([10000.0, 10001.0, 10000.0, 10001.0], estimator="raw")
    mean, square = metrics["advantage/mean"].result(), metrics["advantage/square_mean"].result()
    assert math.sqrt(square - mean**2) == pytest.approx(math.sqrt(3 / 7 * 4 / 7), rel=1e-4)


@pytest.mark.parametrize(
    ("body", "said"), [("raise ZeroDivisionError", "ZeroDivisionError"), ("return token_rewards_BT", "not the pair")]
)
def test_an_estimator_from_outside_is_named_when_a_minibatch_is_whitened_too(tmp_path, body, said) -> None:
    file = tmp_path / f"mine_{len(body)}.py"
    file.write_text(f"def mine(token_rewards_BT, mask_BT):\n    {body}\n")
    algorithm = AlgorithmConfig(estimator=f"{file}:mine", whiten_rewards=True, whiten_over="minibatch")
    batch = four_rows(token_rewards=torch.rand(4, 2), advantages=torch.rand(4, 2))
    with pytest.raises(ConfigError, match=rf"algorithm\.estimator .*mine.*{said}"):
        whiten_minibatch(batch, algorithm=algorithm, estimator=resolve_estimator(algorithm.estimator))


def test_the_kl_of_a_sample_is_that_of_all_its_rows() -> None:
    """k1 is 1 at each token: the rows of the first sample have 2 + 1 of it, the others 2 each."""
    batch = three_samples(old_logprobs=torch.zeros(4, 2), ref_logprobs=torch.full((4, 2), -1.0))
    settings = {"estimator": "dr_grpo", **IN_REWARD, "kl_coef": 0.5}
    batch, _ = run([3.0, 3.0, 0.0, 0.0], batch, TWO_ROWS, **settings)
    # 3 - 1.5, 0 - 1, 0 - 1; their mean is -1 / 6
    assert batch.advantages[:, 0].tolist() == pytest.approx([5 / 3, 5 / 3, -5 / 6, -5 / 6])
    assert batch.advantages.tolist()[1][1] == 0.0  # padding


def test_scores_are_whitened_over_samples() -> None:
    """3, 0 and 0: a deviation of the square root of 2."""
    batch, metrics = run([3.0, 3.0, 0.0, 0.0], three_samples(), TWO_ROWS, estimator="raw", whiten_rewards=True)
    assert metrics["reward/score_std"].result() == pytest.approx(math.sqrt(2))
    assert batch.advantages[0, 0].item() == pytest.approx(batch.advantages[1, 0].item())


@pytest.mark.parametrize("settings", [{"estimator": "turn_grpo"}, {"estimator": "gae", "discount": "turn"}])
def test_credit_by_turns_is_refused_where_turns_are_in_several_rows(settings: dict[str, str]) -> None:
    """Each row would begin with turn 0, and a sample of two rows would count twice in the mean of its group."""
    batch = three_samples(values=torch.zeros(4, 2))
    with pytest.raises(ConfigError, match=rf"'{settings['estimator']}' gives credit by turns, but .* several rows"):
        run([1.0, 1.0, 0.0, 0.0], batch, TWO_ROWS, **settings)
