"""Which rewards a response is scored by, and what the group that remains can be compared on."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.errors import RewardError
from burnish.rewards.combining import Weighted, combine, not_for_prompt, to_score, with_scores
from burnish.rewards.outcome import Outcome, failure
from burnish.trainers.rl.batching import build_rewards, with_parts
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, RolloutGroup, Score, Turn

LABELS = ("a", "b", "c")
ANSWERS = {
    "score": Outcome(RewardStatus.OK, Score(1.0)),
    "none": failure(RewardStatus.MISSING, "None"),
    "error": failure(RewardStatus.ERROR, "broken"),
}


def rollout(sample: int) -> Rollout:
    return Rollout("p", 0, sample, (1,), (2,), (0.0,), FinishReason.STOP, 0, response="x")


def combined(answers: Sequence[Sequence[str]]) -> list[Rollout]:
    """The responses of one group; `answers` are those of the rewards a, b and c to each response."""
    outcomes = {
        (reward, place): ANSWERS[answer] for place, row in enumerate(answers) for reward, answer in enumerate(row)
    }
    elsewhere = not_for_prompt(outcomes, [("p", 0)] * len(answers))
    found: list[list[Weighted]] = [[] for _ in answers]
    for (reward, place), outcome in outcomes.items():
        found[place].append(Weighted(LABELS[reward], 1.0, outcome, applies=(reward, place) not in elsewhere))
    return [combine(rollout(place), given, None) for place, given in enumerate(found)]


@given(st.lists(st.tuples(*[st.sampled_from(sorted(ANSWERS))] * 3), min_size=1, max_size=5))
def test_what_is_left_of_a_group_was_scored_by_the_same_rewards(answers: list[tuple[str, str, str]]) -> None:
    """So siblings are compared on the same sum, and estimators that treat rewards separately get their parts."""
    scored = [one for one in combined(answers) if one.reward is not None]
    assert len({frozenset(one.reward_parts) for one in scored}) <= 1
    if scored:
        group = RolloutGroup(Prompt("p", text="?"), 0, tuple(scored))
        rows = [(group, one) for one in scored]
        rewards = with_parts(build_rewards(rows), rows, dict.fromkeys(LABELS, 1.0))
        assert rewards.parts_BC is not None


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.sampled_from(sorted(ANSWERS))] * 3), min_size=1, max_size=5), st.randoms())
def test_the_order_of_the_responses_changes_nothing(answers: list[tuple[str, str, str]], random: object) -> None:
    order = list(range(len(answers)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain, shuffled = combined(answers), combined([answers[place] for place in order])
    assert [one.status for one in shuffled] == [plain[place].status for place in order]


def test_none_to_all_responses_of_a_group_is_not_for_that_group_only() -> None:
    none, ok = ANSWERS["none"], ANSWERS["score"]
    outcomes = {(0, 0): none, (0, 1): none, (0, 2): none, (0, 3): ok, (1, 0): ok}
    assert not_for_prompt(outcomes, [("p", 0), ("p", 0), ("q", 1), ("q", 1)]) == {(0, 0), (0, 1)}


def test_a_failure_explains_more_than_a_missing_score() -> None:
    """The reward a returned None, for this response only or for all, and b raised."""
    (alone,) = combined([("none", "error", "none")])
    assert (alone.status, alone.status_detail) == (RewardStatus.ERROR, "broken")
    group = combined([("error",), ("none",)])  # a reward that fails for one response is for the others of the group
    assert [one.status for one in group] == [RewardStatus.ERROR, RewardStatus.MISSING]
    both = combined([("none", "error", "score"), ("score", "score", "score")])
    assert [(one.status, one.status_detail) for one in both] == [(RewardStatus.ERROR, "broken"), (RewardStatus.OK, "")]


def conversation() -> Rollout:
    """One token of the policy, two of a tool, two of the policy."""
    turns = (Turn("policy", 0, 1), Turn("tool", 1, 3), Turn("policy", 3, 5))
    return replace(rollout(0), response_tokens=(2,) * 5, rollout_logprobs=(0.0,) * 5, turns=turns)


def test_rewards_of_turns_and_of_the_whole_are_on_sampled_tokens() -> None:
    dense = Score(3.0, token_rewards=(1.0, 0.0, 0.0, 0.0, 2.0))
    scores = {"a": dense, "b": Score(5.0)}
    results = [Weighted(label, 2.0, Outcome(RewardStatus.OK, score)) for label, score in scores.items()]
    assert combine(conversation(), results, None).token_rewards == (2.0, 0.0, 0.0, 0.0, 14.0)


def test_a_reward_on_a_token_that_nobody_sampled_is_refused() -> None:
    lost = Score(3.0, token_rewards=(1.0, 0.0, 2.0, 0.0, 0.0))
    with pytest.raises(RewardError, match=r"(?s)'a' returned 2 as token_rewards\[2\].*did not sample.*is policy"):
        combine(conversation(), [Weighted("a", 1.0, Outcome(RewardStatus.OK, lost))], None)


PROMPT = Prompt("p", text="p")


def row(
    index: int, ends_in: int | None = None, reason: FinishReason = FinishReason.STOP, group: int = 0, branch: int = 0
) -> Rollout:
    return Rollout("p", group, index, (1,), (2,), (-0.5,), reason, 0, ends_in=ends_in, branch=branch)


def scored(rollout: Rollout, reward: float | None) -> Rollout:
    status = RewardStatus.ERROR if reward is None else RewardStatus.OK
    return replace(rollout, reward=reward, reward_parts={} if reward is None else {"math": reward}, status=status)


ROWS = [row(3, 3, branch=1), row(3), row(4, reason=FinishReason.FAILED)]
ROWS += [row(0, 0, group=1, branch=1), row(0, 0, group=1, branch=2), row(0, group=1)]
ITEMS = [(PROMPT, one) for one in ROWS]


def test_only_rows_that_end_are_scored() -> None:
    assert [(r.group_id, r.sample_index) for _, r in to_score(ITEMS)] == [(0, 3), (1, 0)]


def test_all_rows_have_the_score_of_the_end() -> None:
    found = with_scores(ITEMS, [scored(ROWS[1], 0.5), scored(ROWS[5], None)])
    assert [r.reward for r in found] == [0.5, 0.5, None, None, None, None]
    assert found[0].reward_parts == {"math": 0.5}
    assert [r.status for r in found[3:]] == [RewardStatus.ERROR] * 3
    assert [r.ends_in for r in found] == [r.ends_in for r in ROWS]


def test_token_rewards_are_those_of_the_row_that_ends() -> None:
    found = with_scores(ITEMS, [replace(scored(ROWS[1], 0.5), token_rewards=(0.5,)), scored(ROWS[5], 0.0)])
    assert [r.token_rewards for r in found[:2]] == [None, (0.5,)]
    assert [r.reward for r in found[:2]] == [0.5, 0.5]
