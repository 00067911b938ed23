"""Normalisation of scores and weights of advantages by domain, by hand."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_samples import domains_of, plain_rollout

from burnish.config.schema import RlConfig
from burnish.trainers.rl.batching import BatchRewards, build_batch, build_rewards
from burnish.trainers.rl.credit.by_domain import DomainCredit, Moments
from burnish.types import Prompt, Rollout, RolloutGroup

Rows = list[tuple[RolloutGroup, Rollout]]


def credit_of(**domains: dict[str, Any]) -> DomainCredit:
    config = RlConfig(
        model="m", rewards="exact", domains={name: {"train": "x", **settings} for name, settings in domains.items()}
    )
    return DomainCredit(domains_of(config, {}))


def rows_of(*groups: tuple[str, Sequence[float]], tokens: int = 2) -> Rows:
    rows: Rows = []
    for number, (domain, scores) in enumerate(groups):
        rollouts = tuple(
            plain_rollout(tokens, score, group=number, index=i, reward_parts={"exact": score})
            for i, score in enumerate(scores)
        )
        group = RolloutGroup(Prompt(f"p{number}", text="x", domain=domain), number, rollouts)
        rows += [(group, rollout) for rollout in rollouts]
    return rows


def normalized(credit: DomainCredit, rows: Rows) -> list[float]:
    batch = build_batch([rollout for _, rollout in rows], pad_token_id=0, mask_truncated=False)
    return [round(score, 4) for score in credit.normalized(build_rewards(rows), batch, rows).scores_B.tolist()]


def test_scores_are_normalised_as_each_domain_asks() -> None:
    """Scores 1, 3 | 5, 7 have the mean 4 and the deviation 5 ** .5; each pair by itself becomes -1, 1."""
    groups = (("a", (1.0, 3.0)), ("a", (5.0, 7.0)), ("b", (0.0, 1.0)))
    assert normalized(credit_of(a={}, b={}), rows_of(*groups)) == [1, 3, 5, 7, 0, 1]
    assert normalized(credit_of(a={"normalize": "group"}, b={}), rows_of(*groups)) == [-1, 1, -1, 1, 0, 1]
    root = 5**0.5
    expected = [round(x / root, 4) for x in (-3, -1, 1, 3)]
    assert normalized(credit_of(a={"normalize": "domain"}, b={}), rows_of(*groups)) == [*expected, 0, 1]


def test_branches_of_an_agent_count_once_in_the_mean() -> None:
    """Scores 1 (in two rows) and 3: a mean of 2 and a deviation of 1."""
    rows = rows_of(("a", [1.0, 3.0]))
    group, first = rows[0]
    rows.append((group, dataclasses.replace(first, branch=1)))
    assert normalized(credit_of(a={"normalize": "domain"}), rows) == [-1.0, 1.0, -1.0]


@pytest.mark.slow
@pytest.mark.parametrize("over", ["group", "domain", "running"])
@given(score=st.floats(-1e6, 1e6, width=32), greedy=st.floats(-10, 10, width=32), count=st.integers(1, 5))
def test_equal_scores_are_shifted_and_not_scaled(over: str, score: float, greedy: float, count: int) -> None:
    """The greedy response may score otherwise: its distance from the others stays as it is."""
    rows = rows_of(("a", [score] * count))
    batch = build_batch([rollout for _, rollout in rows], pad_token_id=0, mask_truncated=False)
    scores_B = torch.full((count,), score)
    rewards = BatchRewards(scores_B, greedy_scores_B=scores_B + greedy)
    found = credit_of(a={"normalize": over}).normalized(rewards, batch, rows)
    torch.testing.assert_close(found.scores_B, torch.zeros(count), atol=1e-6 * max(1, abs(score)), rtol=0)
    torch.testing.assert_close(found.greedy_scores_B, scores_B + greedy - score, atol=1e-6 * max(1, abs(score)), rtol=0)


def test_scores_are_clipped_after_they_are_normalised() -> None:
    credit = credit_of(a={"normalize": "domain", "reward_clip": 0.5}, b={"reward_clip": 2.0})
    assert normalized(credit, rows_of(("a", (1.0, 3.0)), ("b", (1.0, 3.0)))) == [-0.5, 0.5, 1, 2]


def test_running_moments_are_kept_when_a_step_is_done() -> None:
    """First 1, 3: mean 2, deviation 1. Then 5, 7 as well: mean 4, deviation 5 ** .5."""
    credit = credit_of(a={"normalize": "running"})
    assert normalized(credit, rows_of(("a", (1.0, 3.0)))) == [-1, 1]
    assert credit.state_dict() == {}, "the step was not trained on"
    credit.commit()
    later = credit_of(a={"normalize": "running"})
    later.load_state_dict(json.loads(json.dumps(credit.state_dict())))
    expected = [round(1 / 5**0.5, 4), round(3 / 5**0.5, 4)]
    assert normalized(credit, rows_of(("a", (5.0, 7.0)))) == expected
    assert normalized(later, rows_of(("a", (5.0, 7.0)))) == expected


def test_moments_merge_to_those_of_all_scores() -> None:
    merged = Moments.of([1.0, 2.0]).merge(Moments.of([6.0])).merge(Moments())
    whole = Moments.of([1.0, 2.0, 6.0])
    assert (merged.count, merged.mean) == (whole.count, whole.mean)
    assert merged.squares == pytest.approx(whole.squares)


def test_token_rewards_are_scaled_and_take_the_shift_at_the_last_token() -> None:
    """Scores 1 and 3 of dense rewards (.5, .5) and (1, 2): mean 2, deviation 1."""
    rows = rows_of(("a", (1.0, 3.0)))
    batch = build_batch([rollout for _, rollout in rows], pad_token_id=0, mask_truncated=False)
    rewards = BatchRewards(torch.tensor([1.0, 3.0]), dense_rewards_BT=torch.tensor([[0.5, 0.5], [1.0, 2.0]]))
    found = credit_of(a={"normalize": "domain"}).normalized(rewards, batch, rows)
    torch.testing.assert_close(found.dense_rewards_BT, torch.tensor([[0.5, -1.5], [1.0, 0.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.dense_rewards_BT.sum(dim=1), found.scores_B, atol=1e-5, rtol=0)


def weights(credit: DomainCredit, rows: Rows) -> list[float]:
    batch = build_batch([rollout for _, rollout in rows], pad_token_id=0, mask_truncated=False)
    ones = torch.ones(batch.loss_mask.shape)
    advantages = credit.weighted(batch.replace(advantages=ones), rows).advantages
    return [round(weight, 4) for weight in advantages[:, 0].tolist()]


def test_hard_prompts_weigh_more() -> None:
    """Half solved and none solved: 1 - .5 + .5 = 1 and 1 - 0 + .5 = 1.5, over their mean 1.25. Domain b weighs 3."""
    rows = rows_of(("a", (1.0, 0.0)), ("a", (0.0, 0.0)), ("b", (1.0,)))
    credit = credit_of(a={"difficulty_weight": 1.0}, b={"loss_weight": 3.0})
    assert weights(credit, rows) == [0.8, 0.8, 1.2, 1.2, 3.0]


def test_short_responses_weigh_more() -> None:
    """One token and four: 1 and 4 ** -.5, over their mean .75."""
    rows = rows_of(("a", (1.0,)), tokens=1) + rows_of(("a", (1.0,)), tokens=4)
    assert weights(credit_of(a={"length_weight": 0.5}), rows) == [round(4 / 3, 4), round(2 / 3, 4)]


def test_without_weights_nothing_changes() -> None:
    rows = rows_of(("a", (1.0, 0.0)))
    batch = build_batch([rollout for _, rollout in rows], pad_token_id=0, mask_truncated=False)
    assert credit_of(a={}).weighted(batch, rows) is batch
    rewards = build_rewards(rows)
    assert credit_of(a={}).normalized(rewards, batch, rows) is rewards
