"""pass@k and maj@k by hand."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_samples import plain_rollout

from burnish.config.schema import RewardConfig
from burnish.forward.batch import Batch
from burnish.rewards.success import Success
from burnish.rollouts.engine import Sampling
from burnish.trainers.rl.evaluation import (
    BY_TEXT,
    Evaluator,
    HeldOut,
    held_out_values,
    majority,
    powers_up_to,
    votes_of,
)
from burnish.types import FinishReason, Metric, Prompt, Reduction, Rollout, RolloutGroup


def answer(text: str, index: int) -> Rollout:
    return plain_rollout(index=index, response=text)


def test_the_largest_set_wins_and_the_first_seen_among_equals() -> None:
    rollouts = [answer(text, i) for i, text in enumerate(["a", "b", "b", "c"])]
    assert majority(rollouts, BY_TEXT).sample_index == 1
    assert majority(rollouts[:2], BY_TEXT).sample_index == 0


def test_samples_vote_by_what_the_reward_math_holds_to_be_equal() -> None:
    votes = votes_of([RewardConfig(name="exact"), RewardConfig(name="math")])
    texts = ["\\boxed{7}", "no answer at all", "The answer is 1000.", "\\boxed{1,000}", "\\boxed{7}", "it is $1000.0$"]
    assert majority([answer(text, i) for i, text in enumerate(texts)], votes).sample_index == 2
    silent = [answer(text, i) for i, text in enumerate(["none", "none", "\\boxed{7}"])]
    assert majority(silent, votes).sample_index == 0  # whoever says nothing votes for nobody


def test_k_runs_over_powers_of_two_up_to_the_number_of_samples() -> None:
    assert powers_up_to(1) == [1]
    assert powers_up_to(6) == [1, 2, 4, 6]
    assert powers_up_to(8) == [1, 2, 4, 8]


def judged(text: str, reward: float | None, *, tokens: int = 1, cut: bool = False) -> Rollout:
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    parts = {} if reward is None else {"exact": reward}
    return plain_rollout(tokens, reward, response=text, finish_reason=reason, reward_parts=parts)


def group_of(greedy: Rollout, *sampled: Rollout, domain: str = "a") -> RolloutGroup:
    return RolloutGroup(Prompt("p", text="x", domain=domain), greedy.group_id, sampled, greedy)


EXACT = Success({"exact": 1.0})


def described(groups: list[RolloutGroup], samples: int = 0, success: Success | None = EXACT) -> dict[str, float | None]:
    part = HeldOut([], Sampling(max_response_tokens=8), samples, temperature=1.0, success=success, votes=BY_TEXT)
    evaluator = Evaluator(parts={None: part}, engine=None, scorer=None, seed=0)  # type: ignore[arg-type]
    return {name: metric.result() for name, metric in evaluator.describe(groups).items()}


def test_greedy_statistics_leave_failures_out_of_the_mean_and_count_them() -> None:
    groups = [
        group_of(judged("x", 1.0, tokens=2)),
        group_of(judged("y", 0.5, tokens=4, cut=True)),
        group_of(judged("z", None, tokens=3)),
    ]
    row = described(groups)
    assert row["eval/reward_mean"] == 0.75
    assert row["eval/accuracy"] == 0.5
    assert (row["eval/accuracy_low"], row["eval/accuracy_high"]) == pytest.approx((0.0945, 0.9055), abs=1e-4)  # 1 of 2
    assert row["eval/prompts"] == 3
    assert row["eval/response_tokens_mean"] == 3.0
    assert row["eval/truncated_fraction"] == pytest.approx(1 / 3)
    assert row["eval/failed_fraction"] == pytest.approx(1 / 3)
    assert not [name for name in row if "@" in name or "domain" in name]


def test_parts_are_means_over_the_greedy_responses_that_have_them() -> None:
    """A failed reward leaves the parts of the others; the sampled responses have no say."""
    parts: list[dict[str, float]] = [{"exact": 1.0, "brief": 0.5, "brief/words": 3.0}, {"exact": 0.0}]
    greedy = [dataclasses.replace(judged("x", 1.0), reward_parts=of_one) for of_one in parts]
    sampled = dataclasses.replace(judged("x", 1.0), reward_parts={"exact": 9.0})
    row = described([group_of(one, sampled) for one in greedy], samples=1)
    found = {name: value for name, value in row.items() if "part" in name}
    assert found == {"eval/part/exact": 0.5, "eval/part/brief": 0.5, "eval/part/brief/words": 3.0}


def test_samples_give_pass_and_majority_over_prompts_that_were_scored_whole() -> None:
    """First prompt: 1 of 2 solved, majority tied, first seen wins (wrong). Second: both solved. Third: one failed."""
    groups = [
        group_of(judged("x", 0.0), judged("a", 0.0), judged("b", 1.0)),
        group_of(judged("x", 1.0), judged("c", 1.0), judged("c", 1.0)),
        group_of(judged("x", 1.0), judged("c", 1.0), judged("c", None)),
    ]
    row = described(groups, samples=2)
    assert row["eval/pass@1"] == 0.75
    assert row["eval/pass@2"] == 1.0
    assert row["eval/maj@2"] == 0.5
    assert row["eval/sampled_reward_mean"] == pytest.approx(4 / 5)


def test_domains_are_measured_apart_when_there_are_two() -> None:
    row = described([group_of(judged("x", 1.0)), group_of(judged("y", 0.0), domain="b")])
    assert row["eval/accuracy"] == 0.5
    assert row["eval/domain/a/accuracy"] == 1.0
    assert row["eval/domain/b/accuracy"] == 0.0
    assert (row["eval/domain/a/prompts"], row["eval/domain/b/accuracy_low"]) == (1, 0.0)


def weighed(reward: float, **parts: float) -> Rollout:
    return dataclasses.replace(judged("x", reward), reward_parts=parts)


def test_a_bonus_makes_nothing_solved_and_a_penalty_spoils_nothing() -> None:
    """Weighted sums of 1.14 (wrong, with a bonus of 1) and 0.8 (right, with a penalty): one of two is solved."""
    groups = [group_of(weighed(1.14, exact=0.14, bonus=1.0)), group_of(weighed(0.8, exact=1.0, brief=-0.2))]
    assert described(groups)["eval/accuracy"] == 0.5


def test_each_judging_reward_must_reach_its_own_threshold() -> None:
    success = Success({"exact": 1.0, "overlap": 0.5})
    groups = [group_of(weighed(3.0, exact=2.0, overlap=0.4)), group_of(weighed(1.5, exact=1.0, overlap=0.5))]
    assert described(groups, success=success)["eval/accuracy"] == 0.5


def test_without_a_judge_there_is_no_accuracy_and_no_pass_at_k() -> None:
    groups = [group_of(judged("x", 3.0), judged("a", 3.0), judged("b", 4.0))]
    row = described(groups, samples=2, success=None)
    assert row["eval/sampled_reward_mean"] == 3.5
    assert not [name for name in row if "accuracy" in name or "@" in name]


def test_a_full_score_that_rounding_left_below_one_is_solved() -> None:
    assert 0.7 + 0.2 + 0.1 < 1.0
    assert described([group_of(judged("x", 0.7 + 0.2 + 0.1))])["eval/accuracy"] == 1.0
    assert described([group_of(judged("x", 0.999))])["eval/accuracy"] == 0.0


def test_what_an_evaluation_costs_is_told_and_what_it_counts_is_not() -> None:
    def spent(*names: str) -> Any:
        counts = {name: Metric(Reduction.SUM, 2.0) for name in names}
        return SimpleNamespace(
            take_metrics=lambda: counts,
            generate=lambda *_, **__: [],
            score=lambda items: [rollout for _, rollout in items],
        )

    evaluator = Evaluator(
        {}, spent("rollout/engine_restarts", "rollout/decoded_tokens"), spent("judge/cost", "reward/failed"), seed=0
    )
    metrics, groups = evaluator.evaluate()
    assert groups == []
    told = {name: metric.result() for name, metric in metrics.items() if name in ("eval/judge/cost",)}
    assert told == {"eval/judge/cost": 2.0}
    assert metrics["eval/rollout/engine_restarts"].result() == 2.0
    assert not {"reward/failed", "eval/reward/failed", "eval/rollout/decoded_tokens"} & metrics.keys()


# Values by hand


class Tokens:
    """A critic whose value before a token is a tenth of the token."""

    shares_trunk = False

    def values(self, batch: Batch) -> torch.Tensor:
        return batch.response_tokens / 10


def response(group: int, sample: int, first: int, reward: float | None) -> Rollout:
    tokens = (first, 9)[: 1 + group]
    return plain_rollout(len(tokens), reward, group=group, index=sample, response_tokens=tokens)


def valued(*groups: RolloutGroup) -> tuple[dict[str, float | None], dict[tuple[int, int], tuple[float, ...]]]:
    metrics, values = held_out_values(Tokens(), groups, pad_token_id=0)  # type: ignore[arg-type]
    assert all(isinstance(metric, Metric) for metric in metrics.values())
    return {name: metric.result() for name, metric in metrics.items()}, dict(values)  # type: ignore[arg-type]


def test_greedy_responses_are_judged_where_there_are_no_others() -> None:
    """Values .2 and .6, scores 0 and 1: residuals -.2 and .4, variance .09 against .25."""
    row, values = valued(group_of(response(0, -1, 2, 0.0)), group_of(response(1, -1, 6, 1.0)))
    assert row["eval/value_mean"] == pytest.approx(0.4)
    assert row["eval/explained_variance"] == pytest.approx(1 - 0.09 / 0.25)
    assert values == {(0, -1, 0): pytest.approx((0.2,)), (1, -1, 0): pytest.approx((0.6, 0.9))}


def test_sampled_responses_are_preferred_and_failed_ones_left_out() -> None:
    sampled = response(0, 0, 4, 1.0), response(0, 1, 8, None)
    row, values = valued(group_of(response(0, -1, 2, 0.0), *sampled))
    assert row == {"eval/value_mean": pytest.approx(0.4)}  # one score has no variance to explain
    assert set(values) == {(0, -1, 0), (0, 0, 0), (0, 1, 0)}


def test_nothing_judged_says_nothing() -> None:
    assert valued(group_of(response(0, -1, 2, None)))[0] == {"eval/value_mean": None}
    assert valued() == ({}, {})
