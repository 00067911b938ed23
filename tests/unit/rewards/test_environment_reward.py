"""What an environment paid, as the reward of a conversation."""

from dataclasses import replace

import pytest

from burnish.rewards.builtins.environment import Environment
from burnish.types import FinishReason, Prompt, RewardStatus, Rollout, Score, Turn

TURNS = (
    Turn("policy", 0, 2, reward=0.25),
    Turn("environment", 2, 4),
    Turn("policy", 4, 5),
    Turn("tool", 5, 6),
    Turn("policy", 6, 8, reward=0.5),
)
TALK = Rollout("p", 0, 0, (1,), (2,) * 8, (0.0,) * 8, FinishReason.STOP, 0, turns=TURNS, environment_reward=1.0)


def judged(rollout: Rollout, **options: bool) -> Score | float | None:
    turns = [turn.to_dict() for turn in rollout.turns]
    return Environment(**options)(rollout.environment_reward, turns, rollout.response_tokens)


def test_the_whole_or_each_turn() -> None:
    assert judged(TALK) == 1.0
    # what is left of 1 is paid at the end: .5 for the turn, and .25
    assert judged(TALK, by_turn=True) == Score(1.0, token_rewards=(0, 0.25, 0, 0, 0, 0, 0, 0.75))


@pytest.mark.parametrize("by_turn", [False, True])
def test_none_where_nothing_is_paid(by_turn: bool) -> None:
    assert judged(replace(TALK, environment_reward=None), by_turn=by_turn) is None
    assert judged(replace(TALK, turns=()), by_turn=by_turn) == 1.0
    nothing = replace(TALK, environment_reward=0.0)
    found = judged(nothing, by_turn=by_turn)
    assert (found if isinstance(found, float) else found.value) == 0.0  # type: ignore[union-attr]


def test_as_the_reward_of_a_run(make_scorer) -> None:
    scorer = make_scorer({"name": "environment", "options": {"by_turn": True}})
    prompt = Prompt("p", text="x")
    scored, unpaid = scorer.score([(prompt, TALK), (replace(prompt, id="q"), replace(TALK, environment_reward=None))])
    assert (scored.reward, scored.token_rewards) == (1.0, (0, 0.25, 0, 0, 0, 0, 0, 0.75))
    assert (unpaid.reward, unpaid.status) == (None, RewardStatus.MISSING)
