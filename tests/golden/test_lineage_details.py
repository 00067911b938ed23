"""Each detail of the lineage turned off by its option, and the difference worked out by hand.

Details that are not options but always so are held where docs/lineage.md says.
"""

import math
from typing import Any

import pytest
import torch
from batches import batch_of, joined
from torch import Tensor

from burnish.algorithms.advantages import resolve_estimator
from burnish.config.loading import load_run_data
from burnish.config.schema import RlConfig
from burnish.forward.batch import Batch
from burnish.models.optimizers import OptimizerSettings, WeightOptimizer
from burnish.models.roles import Denominators
from burnish.trainers.rl.batching import BatchRewards
from burnish.trainers.rl.credit import assign_advantages, whiten_minibatch
from burnish.trainers.rl.setup.critic import build_value_objective, critic_settings
from burnish.trainers.rl.setup.parts import build_kl

SCORES = (0.43, -0.77)
KL = ((0.5, -0.2, 0.3), (0.1, 0.0, -0.4))
VALUES = ((0.1, 0.2, 0.3), (0.0, -0.1, 0.2))


def preset(*overrides: str, name: str = "oai_2019") -> RlConfig:
    return load_run_data(
        {"model": "m", "data": {"train": "a.txt"}, "rewards": "model:rm", "algorithm": name}, overrides
    ).config


def credited(*overrides: str) -> Batch:
    """Two responses of three tokens through the preset's credit assignment, KL coefficient .1; in minibatches of one
    response where the overrides ask for two of them."""
    given = any(override.startswith("algorithm.kl_coef=") for override in overrides)
    config = preset(*(() if given else ("algorithm.kl_coef=0.1",)), *overrides)
    old = torch.full((2, 3), -1.0)
    fields = {"old_logprobs": old, "ref_logprobs": old - torch.tensor(KL), "values": torch.tensor(VALUES)}
    batch = batch_of([[1]] * 2, [[1] * 3] * 2, **fields)
    scored, _ = assign_advantages(
        batch,
        BatchRewards(scores_B=torch.tensor(SCORES)),
        algorithm=config.algorithm,
        estimator=resolve_estimator(config.algorithm.estimator),
        kl_coef=config.algorithm.kl_coef,
        whiten=not config.whitens_minibatches,
    )
    if not config.whitens_minibatches:
        return scored
    estimator = resolve_estimator(config.algorithm.estimator)
    parts = [scored.select(rows) for rows in ([0], [1])]
    return joined([whiten_minibatch(part, algorithm=config.algorithm, estimator=estimator)[0] for part in parts])


PLAIN = ("algorithm.whiten_rewards=false", "algorithm.whiten_advantages=false")


def rounded(tensor: Tensor | None) -> list[list[float]]:
    assert tensor is not None
    return [[round(number, 4) for number in row] for row in tensor.tolist()]


def test_kl_per_token_and_the_score_on_the_last() -> None:
    """-.1 x kl on every token, .43 and -.77 on the last; without the KL only these."""
    assert rounded(credited(*PLAIN).token_rewards) == [[-0.05, 0.02, 0.4], [-0.01, 0.0, -0.73]]
    off = credited(*PLAIN, "algorithm.kl_in=none", "algorithm.kl_coef=0", "algorithm.kl_target=null")
    assert rounded(off.token_rewards) == [[0.0, 0.0, 0.43], [0.0, 0.0, -0.77]]


def test_rewards_are_whitened_without_moving_their_mean() -> None:
    rewards = torch.tensor([-0.05, 0.02, 0.4, -0.01, 0.0, -0.73])
    mean, std = rewards.mean(), rewards.std(correction=0)
    on = credited("algorithm.whiten_advantages=false").token_rewards
    assert on is not None
    torch.testing.assert_close(on.flatten(), (rewards - mean) / std + mean, atol=1e-5, rtol=0)
    assert float(on.mean()) == pytest.approx(float(mean), abs=1e-6)
    assert float(on.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    off = credited(*PLAIN).token_rewards
    assert float(off.std(correction=0)) == pytest.approx(float(std), abs=1e-6)  # type: ignore[union-attr]


def test_advantages_are_whitened_with_their_mean() -> None:
    on, off = credited("algorithm.whiten_rewards=false"), credited(*PLAIN)
    assert on.advantages is not None
    assert off.advantages is not None
    assert rounded(off.advantages)[0] == [0.2543, 0.215, 0.1]  # the golden row of ALGORITHMS section 6
    whitened = (off.advantages - off.advantages.mean()) / off.advantages.std(correction=0)
    torch.testing.assert_close(on.advantages, whitened, atol=1e-5, rtol=0)
    torch.testing.assert_close(on.returns, off.returns)  # the critic learns plain returns


def test_each_minibatch_is_whitened_by_itself() -> None:
    """Rewards -.05 .02 .4 have mean .12333 and deviation .19771; GAE over -.75338 -.39932 1.52270 gives .16575 .86224
    1.22270, of mean .75023 and deviation .43870. Rewards -.01 0 -.73 have mean -.24667 and deviation .34179; GAE over
    .44576 .47502 -1.66078 gives -.59732 -.99272 -1.86078, of mean -1.15028 and deviation .52770."""
    found = credited("optimization.minibatches=2")
    assert found.advantages is not None
    expected = torch.tensor([[-1.33228, 0.25532, 1.07696], [1.04786, 0.29857, -1.34642]])
    torch.testing.assert_close(found.advantages, expected, atol=2e-4, rtol=0)
    returns = torch.tensor([[0.26575, 1.06224, 1.52270], [-0.59732, -1.09272, -1.66078]])
    torch.testing.assert_close(found.returns, returns, atol=2e-4, rtol=0)
    over_step = credited("optimization.minibatches=2", "algorithm.whiten_over=step")
    assert not torch.allclose(over_step.advantages, found.advantages, atol=0.1)  # type: ignore[arg-type]
    assert torch.equal(over_step.advantages, credited().advantages)  # type: ignore[arg-type]


def test_whitened_advantages_alone_leave_the_returns() -> None:
    """GAE of the rewards as they are: .25425 .215 .1, of mean .18975 and deviation .06548."""
    found = credited("optimization.minibatches=2", "algorithm.whiten_rewards=false")
    torch.testing.assert_close(found.returns, credited(*PLAIN).returns)
    row = found.advantages[0]  # type: ignore[index]
    torch.testing.assert_close(row, torch.tensor([0.98541, 0.38576, -1.37117]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("algorithm.gamma=1.0", 0.25425),  # .05 + .95 (.12 + .95 x .1)
        ("algorithm.gamma=0.9", -0.05 + 0.9 * 0.2 - 0.1 + 0.855 * (0.02 + 0.9 * 0.3 - 0.2 + 0.855 * 0.1)),
        ("algorithm.lam=1.0", -0.05 + 0.02 + 0.4 - 0.1),  # return less value
        ("algorithm.lam=0.0", -0.05 + 0.2 - 0.1),  # one step
    ],
)
def test_gamma_and_lambda(override: str, first: float) -> None:
    advantages = credited(*PLAIN, override).advantages
    assert float(advantages[0, 0]) == pytest.approx(first, abs=1e-6)  # type: ignore[index]


def test_the_coefficient_follows_the_kl_and_stays_without_a_target() -> None:
    adaptive, fixed = build_kl(preset().algorithm), build_kl(preset("algorithm.kl_target=null").algorithm)
    for controller in (adaptive, fixed):
        controller.update(12.0, 512)  # twice the target: clipped to +.2, times 512 / 10,000
    assert adaptive.coef == pytest.approx(0.15 * 1.01024)
    assert fixed.coef == 0.15
    assert build_kl(preset(name="tldr_2020").algorithm).coef == 0.05


def value_loss(values: list[float], old: list[float], returns: list[float], *overrides: str, name: str) -> float:
    config = preset(*overrides, name=name)
    row = {key: torch.tensor([numbers]) for key, numbers in (("values", old), ("returns", returns))}
    objective = build_value_objective(config)
    batch = batch_of([[1]], [[1, 1]], **row)
    return float(
        objective(torch.tensor([values]), batch, Denominators(num_tokens=2, num_sequences=1, num_turns=1)).loss
    )


def test_values_are_clipped_around_those_at_sampling_time() -> None:
    """Value .5 from .0, return 1: unclipped .5 (.5)^2, clipped at .2 it is .5 (.8)^2, and the larger counts."""
    numbers: Any = ([0.5, 0.0], [0.0, 0.0], [1.0, 0.0])
    assert value_loss(*numbers, name="oai_2019") == pytest.approx(0.5 * 0.64 / 2)
    assert value_loss(*numbers, "critic.clip=null", name="oai_2019") == pytest.approx(0.5 * 0.25 / 2)


def test_the_value_loss_counts_a_tenth() -> None:
    numbers: Any = ([0.1, 0.0], [0.0, 0.0], [1.0, 0.0])
    whole = value_loss(*numbers, "critic.coef=1", name="tldr_2020")
    assert whole == pytest.approx(0.5 * 0.81 / 2)
    assert value_loss(*numbers, name="tldr_2020") == pytest.approx(0.1 * whole)
    assert preset("critic.coef=null").critic.loss_weight == 0.1
    assert preset("critic.coef=null", name="tldr_2020").critic.loss_weight == 1.0


def first_step(*overrides: str, gradient: float = 1e-4) -> float:
    """Step / learning rate of the first update of the preset's optimizer."""
    config = preset(*overrides)
    weight = torch.nn.Parameter(torch.zeros(1, 1))
    settings = OptimizerSettings.from_config(config.optimization, total_steps=config.policy_updates)
    optimizer = WeightOptimizer([("w", weight)], settings)
    weight.grad = torch.full((1, 1), gradient)
    rate = optimizer.step(0, optimizer.grad_norm())
    return -weight.item() / rate


def test_adam_in_tensorflows_form_damps_small_gradients() -> None:
    assert first_step() == pytest.approx(0.240253, abs=1e-5)
    assert first_step("optimization.optimizer=adamw") == pytest.approx(0.909091, abs=1e-5)
    assert first_step("optimization.eps=1e-8") == pytest.approx(1e-4 / (1e-4 + 1e-8 / math.sqrt(0.001)), abs=1e-4)


def test_gradients_are_not_clipped() -> None:
    """Of a gradient of 100 the plain norm clip to 1 leaves a hundredth; Adam's steps tell it by their epsilon."""
    unclipped = first_step("optimization.eps=1", gradient=100.0)
    clipped = first_step("optimization.eps=1", "optimization.max_grad_norm=1", gradient=100.0)
    root = math.sqrt(0.001)
    assert unclipped == pytest.approx(100 * root / (100 * root + 1), abs=1e-4)
    assert clipped == pytest.approx(root / (root + 1), abs=1e-4)


def test_the_critic_steps_at_the_rate_of_the_policy() -> None:
    config = preset("optimization.learning_rate=7e-4")
    policy = OptimizerSettings.from_config(config.optimization, total_steps=config.policy_updates)
    assert critic_settings(config) == policy
    assert critic_settings(preset("critic.learning_rate=1e-3")).learning_rate == 1e-3
