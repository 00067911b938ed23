"""When a response counts as solved: which rewards judge, from which score, and what is refused."""

import dataclasses
from typing import Any

import pytest

from burnish.config.domains import domain_settings
from burnish.config.loading import load_run_data
from burnish.config.schema import RewardConfig
from burnish.config.schema_evaluation import RlEvaluationConfig
from burnish.errors import ConfigError
from burnish.rewards.success import Success, full_marks, success_of, success_of_domain, why_not_measured
from burnish.types import FinishReason, RewardStatus, Rollout


def rewards(*items: dict[str, Any]) -> list[RewardConfig]:
    return [RewardConfig(**item) for item in items]


def scored(reward: float | None, status: RewardStatus = RewardStatus.OK, **parts: float) -> Rollout:
    plain = Rollout("p", 0, 0, (1,), (2,), (0.0,), FinishReason.STOP, 0, response="x")
    named = {name.replace("__", "/"): value for name, value in parts.items()}
    return dataclasses.replace(plain, reward=reward, reward_parts=named, status=status)


MIXED = rewards({"name": "math"}, {"name": "length", "weight": 0.1}, {"name": "a.py:own"}, {"name": "model:m"})


def test_full_marks_are_those_of_the_rewards_that_read_the_answer() -> None:
    assert full_marks(MIXED, ("math", "own")) == Success({"math": 1.0, "own": 1.0})
    assert full_marks(MIXED, ()) is None
    penalty = rewards({"name": "exact"}, {"name": "a.py:copied", "weight": -0.5})
    assert full_marks(penalty, ("exact", "copied")) == Success({"exact": 1.0})


def test_a_named_reward_judges_alone_from_its_own_threshold() -> None:
    def named(**fields: Any) -> Success | None:
        return success_of(MIXED, ("math", "own"), RlEvaluationConfig(**fields))

    assert named() == Success({"math": 1.0, "own": 1.0})
    assert named(success="own", success_score=0.25) == Success({"own": 0.25}, "evaluation.success")
    assert named(success="math") == Success({"math": 1.0}, "evaluation.success")
    assert named(success="own/right") == Success({"own/right": 1.0}, "evaluation.success")
    assert named(success="model", success_score=-3) == Success({"model": -3.0}, "evaluation.success")
    half = RlEvaluationConfig(success_score=0.5)
    assert success_of(rewards({"name": "exact"}), ("exact",), half) == Success({"exact": 0.5})


def test_a_threshold_that_a_built_in_cannot_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"success_score is 2.3, which 'math' cannot reach: it gives at most 1"):
        success_of(MIXED, ("math",), RlEvaluationConfig(success="math", success_score=2.3))
    with pytest.raises(ConfigError, match="cannot reach"):
        success_of(rewards({"name": "exact"}), ("exact",), RlEvaluationConfig(success_score=1.5))


def test_learned_rewards_judge_nothing_and_the_run_says_so() -> None:
    learned = rewards({"name": "model:m"})
    assert success_of(learned, (), RlEvaluationConfig()) is None
    why = "no reward compares with the answer (set evaluation.success to the reward that decides)"
    assert why_not_measured(RlEvaluationConfig()) == f"accuracy, pass@k and maj@k are not measured: {why}"
    assert "success_score 0.5 has no effect" in why_not_measured(RlEvaluationConfig(success_score=0.5))


def test_what_cannot_be_judged_is_neither_solved_nor_unsolved() -> None:
    success = Success({"own/right": 1.0})
    assert success.solved(scored(0.2, own=0.2, own__right=1.0)) is True
    assert success.solved(scored(1.0, own=1.0, own__right=0.5)) is False
    assert success.solved(scored(1.0, own=1.0)) is None
    assert success.solved(scored(None, RewardStatus.TIMEOUT)) is None
    assert success.solved(scored(-1.0, RewardStatus.TIMEOUT)) is False  # scoring.failure_score


def test_a_part_that_no_response_has_is_named_with_the_nearest() -> None:
    misspelt = Success({"own/rihgt": 1.0}, "domains.math.evaluation.success")
    with pytest.raises(ConfigError, match=r"^domains\.math\.evaluation\.success is 'own/rihgt'") as caught:
        misspelt.check_parts([scored(1.0, own=1.0, own__right=1.0)])
    assert "did you mean 'own/right'?" in str(caught.value.remedy)
    misspelt.check_parts([scored(None, RewardStatus.ERROR)])  # nothing was scored


def test_a_reward_that_the_run_file_does_not_name_need_not_be_for_the_held_out_rows() -> None:
    """Rewards `math` and `choice`, and held-out rows of mathematics only."""
    success = success_of(rewards({"name": "math"}, {"name": "choice"}), ("math", "choice"), RlEvaluationConfig())
    assert success is not None
    success.check_parts([scored(1.0, math=1.0)])
    assert success.solved(scored(1.0, math=1.0)) is True


def test_messages_name_the_field_that_the_run_file_sets() -> None:
    """What a domain leaves to the run is named where the run sets it."""
    run = {"model": "m", "rewards": "exact", "evaluation": {"success": "exact"}}
    sums = {"train": "a.jsonl", "evaluation": {"success_score": 2.0}}
    config = load_run_data({**run, "domains": {"sums": sums, "words": {"train": "b.jsonl"}}}).config
    sums, words = domain_settings(config)
    with pytest.raises(ConfigError, match=r"^domains\.sums\.evaluation\.success_score is 2,"):
        success_of_domain(sums, ("exact",))
    assert success_of_domain(words, ("exact",)) == Success({"exact": 1.0}, "evaluation.success")


def test_a_score_that_nothing_has_to_reach_is_refused_where_it_is_set() -> None:
    """What all domains share may concern others of them."""
    score, length = {"evaluation": {"success_score": 0.5}}, {"rewards": "length"}
    one = {"data": {"train": "a"}, **length, **score}
    own = {"domains": {"x": {"train": "a", **length, **score}}}
    shared = {"domains": {"x": {"train": "a", **length}}, **score}
    for run, place in ((one, "evaluation"), (own, r"domains\.x\.evaluation"), (shared, None)):
        (domain,) = domain_settings(load_run_data({"model": "m", **run}).config)
        assert success_of_domain(domain, ("length",)) is not None
        if place is None:
            assert success_of_domain(domain, ()) is None
            continue
        with pytest.raises(ConfigError, match=rf"^{place}\.success_score is 0.5, but no reward compares with"):
            success_of_domain(domain, ())
