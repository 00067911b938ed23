"""Settings that an estimator cannot use are refused before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.algorithms.advantages import resolve_estimator
from burnish.config.schema import RlConfig
from burnish.errors import ConfigError
from burnish.trainers.preflight import check_estimator
from burnish.trainers.setup import build_kl


def config_of(estimator: str, *, scoring: dict[str, Any] | None = None, size: int = 4, **algorithm: Any) -> RlConfig:
    return RlConfig(
        model="m",
        rewards="exact",
        algorithm={"estimator": estimator, **algorithm},
        scoring=scoring or {},
        rollout={"prompts_per_step": 2, "group_size": size},
    )


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("algorithm.kl_in", {"kl_in": "reward", "kl_coef": 0.1, "kl_estimator": "k1"}),
        ("algorithm.reward_clip", {"reward_clip": 1.0}),
        ("algorithm.whiten_rewards", {"whiten_rewards": True}),
        ("algorithm.overlong_buffer", {"overlong_buffer": 0.5}),
        ("scoring.on_failure", {"scoring": {"on_failure": "score", "failure_score": 0.0}}),
        ("scoring.incomplete_score", {"scoring": {"incomplete_score": -1.0}}),
    ],
)
def test_what_acts_on_the_summed_score_is_refused_where_only_its_parts_are_read(
    field: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"{field} is .* estimator 'gdpo' reads each reward by itself"):
        check_estimator(config_of("gdpo", **settings), resolve_estimator("gdpo"))
    check_estimator(config_of("grpo", **settings), resolve_estimator("grpo"))
    check_estimator(config_of("reinforce_plus_plus", **settings), resolve_estimator("reinforce_plus_plus"))


def test_a_kl_in_the_loss_suits_every_estimator() -> None:
    check_estimator(config_of("gdpo", kl_in="loss", kl_coef=0.1), resolve_estimator("gdpo"))


def test_a_group_of_one_is_refused_for_estimators_from_outside_too() -> None:
    """Its name tells the run file nothing; its signature does."""
    outside = "burnish.algorithms.advantages.outcome:dr_grpo"
    with pytest.raises(ConfigError, match=r"rollout\.group_size is 1"):
        check_estimator(config_of(outside, size=1), resolve_estimator(outside))
    check_estimator(config_of(outside, size=2), resolve_estimator(outside))


def test_a_target_makes_the_coefficient_adaptive() -> None:
    """KL twice the target: error bounded at .2, 10 of 100 responses of the horizon."""
    adaptive = build_kl(config_of("grpo", kl_in="loss", kl_coef=0.1, kl_target=1.0, kl_horizon=100).algorithm)
    assert adaptive.update(2.0, 10) == pytest.approx(0.1 * 1.02)
    fixed = build_kl(config_of("grpo", kl_in="loss", kl_coef=0.1).algorithm)
    assert fixed.update(2.0, 10) == 0.1
