"""Where a response ends for its score, and the score of one that does not end."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from burnish.errors import ConfigError
from burnish.models.characters import character_tokenizer
from burnish.rewards import ProcessRewardScorer
from burnish.rewards.endings import Ending, end_of, single_token_id
from burnish.types import FinishReason, Message, Prompt, RewardStatus, Rollout, Turn

TOKENIZER = character_tokenizer("abcdefgh .", eos="$", pad="_")
Item = tuple[Prompt, Rollout]

MAKE = """
def length(response: str) -> float:
    return float(len(response))

def dense(response_tokens):
    from burnish.types import Score
    return Score(float(len(response_tokens)), token_rewards=(1.0,) * len(response_tokens))

def failing(response: str) -> float:
    raise ValueError("no")

def tokens(response_tokens, finish_reason: str) -> float:
    return len(response_tokens) + (0.5 if finish_reason == "stop" else 0.0)
"""


def item(text: str, finish: FinishReason = FinishReason.LENGTH) -> Item:
    tokens = tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])
    rollout = Rollout("p", 0, 0, (1,), tokens, (-1.0,) * len(tokens), finish, 0, response=text)
    return Prompt("p", text="?"), rollout


@pytest.fixture
def score(make_scorer, reward_file) -> Callable[..., tuple[list[Rollout], ProcessRewardScorer]]:
    """score(items, function, scoring options): scored as in a run, where the tokenizer is known."""

    def run(items: Sequence[Item], function: str, **scoring: Any) -> tuple[list[Rollout], ProcessRewardScorer]:
        scorer = make_scorer(f"{reward_file(MAKE)}:{function}", **scoring)
        scorer.attach_policy(TOKENIZER)
        return scorer.score(items), scorer

    return run


def test_the_first_token_at_or_after_the_position_ends_it_and_stays() -> None:
    assert [end_of((7, 1, 7, 1, 7), 7, first) for first in range(4)] == [1, 3, 3, 5]
    assert end_of((7, 1, 7, 1), 7, 3) is None


@pytest.mark.slow
def test_the_score_is_that_of_the_cut_response_and_the_rollout_stays_whole(score) -> None:
    given = item("a.bc.de")
    (rollout,), _ = score([given], "length", truncate_token=".", truncate_after=2)
    assert rollout.reward == 5.0  # "a.bc."
    assert (rollout.response, rollout.response_tokens) == ("a.bc.de", given[1].response_tokens)
    assert len(rollout.rollout_logprobs) == 7
    (whole,), _ = score([given], "length")
    assert whole.reward == 7.0


def test_rewards_see_a_response_that_has_ended(score) -> None:
    assert score([item("ab.cd")], "tokens", truncate_token=".")[0][0].reward == 3.5


@pytest.mark.slow
def test_a_response_without_the_token_gets_the_score_instead_of_its_own(score) -> None:
    """-1 replaces 4; it is not 4 - 1."""
    options = {"truncate_token": ".", "truncate_after": 3}
    (incomplete, complete), scorer = score([item("a.bc"), item("abc.")], "length", incomplete_score=-1.0, **options)
    assert (incomplete.reward, complete.reward) == (-1.0, 4.0)
    assert incomplete.reward_parts == {"length": 4.0}
    assert "incomplete" in incomplete.status_detail
    assert scorer.take_metrics()["reward/incomplete_fraction"].result() == 0.5
    (own, _), scorer = score([item("a.bc"), item("abc.")], "length", **options)
    assert own.reward == 4.0  # without incomplete_score it is counted only
    assert scorer.take_metrics()["reward/incomplete_fraction"].result() == 0.5


@pytest.mark.slow
def test_the_eos_trick_looks_at_how_sampling_ended(score) -> None:
    items = [item("ab", FinishReason.STOP), item("ab", FinishReason.LENGTH)]
    rollouts, _ = score(items, "length", incomplete_score=-1.0)
    assert [rollout.reward for rollout in rollouts] == [2.0, -1.0]
    plain, scorer = score(items, "length")
    assert [rollout.reward for rollout in plain] == [2.0, 2.0]
    assert "reward/incomplete_fraction" not in scorer.take_metrics()


def test_token_rewards_are_0_behind_the_cut(score) -> None:
    cut, incomplete = score([item("ab.cd"), item("abcd")], "dense", truncate_token=".", incomplete_score=-1.0)[0]
    assert cut.token_rewards == (1.0, 1.0, 1.0, 0.0, 0.0)
    assert cut.reward == 3.0
    assert (incomplete.token_rewards, incomplete.reward) == (None, -1.0)


def test_a_failed_reward_is_not_made_good_by_being_incomplete(score) -> None:
    (rollout,), _ = score([item("ab")], "failing", truncate_token=".", incomplete_score=-1.0)
    assert (rollout.reward, rollout.status) == (None, RewardStatus.ERROR)


def test_the_token_is_spelt_as_in_the_vocabulary_or_is_one_token() -> None:
    assert single_token_id(".", TOKENIZER) == TOKENIZER.get_vocab()["."]
    with pytest.raises(ConfigError, match=r"'ab', which is not one token of the tokenizer but \['a', 'b'\]"):
        single_token_id("ab", TOKENIZER)


def test_a_decoder_that_puts_a_space_before_text_still_has_its_full_stop(stories_model: Path) -> None:
    """There `.` by itself is two tokens; the one after a word is the one that is meant."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(stories_model)
    token = single_token_id(".", tokenizer)
    assert tokenizer("Tim ran.", add_special_tokens=False)["input_ids"][-1] == token
    assert len(tokenizer(".", add_special_tokens=False)["input_ids"]) == 2


def test_an_uncut_response_is_handed_on_as_it_is(score) -> None:
    given = item("ab.")
    (rollout,), _ = score([given], "length", truncate_token=".")
    assert dataclasses.replace(rollout, reward=None, reward_parts={}, status=RewardStatus.PENDING) == given[1]


def test_only_the_last_turn_of_a_conversation_is_cut() -> None:
    _, whole = item("a.b.c.d", FinishReason.STOP)
    turns = (Turn("policy", 0, 2), Turn("tool", 2, 4), Turn("policy", 4, 7, (Message("assistant", "c.d"),)))
    talk = dataclasses.replace(whole, response="c.d", turns=turns)
    ending = Ending(TOKENIZER, single_token_id(".", TOKENIZER), 0, None)
    seen = ending.seen(talk)
    assert (seen.response, len(seen.response_tokens), len(seen.sampled_mask())) == ("c.", 6, 6)
    assert seen.turns == (*turns[:2], Turn("policy", 4, 6, (Message("assistant", "c."),)))
    judged = ending.judged(talk, dataclasses.replace(seen, reward=1.0, token_rewards=(0.0,) * 5 + (1.0,)))
    assert (judged.turns, judged.token_rewards) == (turns, (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0))
    later = dataclasses.replace(ending, first_position=2)
    assert later.seen(talk) is talk  # there is none after the second token of the turn
    assert not later.is_complete(talk)
