"""Responses of a group against each other."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_judge import judge_at, shown

from burnish.rewards.judging.pairwise import round_robin
from burnish.types import RewardStatus

settings = partial(judge_at, form="pairwise")


@pytest.fixture
def in_groups(make_group: Any) -> Callable[..., list[Any]]:
    """Responses of one or more groups: lists of texts, the greedy one last if `greedy`."""

    def make(*groups: Sequence[str], **fields: Any) -> list[Any]:
        fields = {"answer": None, **fields}
        return [item for number, texts in enumerate(groups) for item in make_group(texts, number=number, **fields)]

    return make


@pytest.fixture
def longer(stub_judge: Any) -> Any:
    """Starts a stub for which the longer one is better."""

    def rule(messages: Any) -> str:
        said = shown(messages)
        a, b = len(said["response_a"]), len(said["response_b"])
        return f'{{"better": "{"A" if a > b else "B" if b > a else "tie"}"}}'

    return lambda *fault: stub_judge(rule, *fault)


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(1, 40), st.text(max_size=3))
def test_everybody_meets_as_many_others(count: int, opponents: int, seed: str) -> None:
    pairs = round_robin(count, opponents, seed)
    assert len(set(pairs)) == len(pairs)
    assert all(first < second for first, second in pairs)
    met = Counter(player for pair in pairs for player in pair)
    if count - 1 <= opponents:
        assert len(pairs) == count * (count - 1) // 2
        return
    least = opponents if count % 2 == 0 else opponents - 1  # with an odd number one rests in each round
    assert all(least <= met[player] <= opponents for player in range(count))
    assert pairs == round_robin(count, opponents, seed)


def test_scores_are_win_rates(longer, make_scorer, in_groups) -> None:
    stub = longer()
    scorer = make_scorer(settings(stub))
    scored = scorer.score(in_groups(["a", "bbb", "cc", "dd"], ["x", "yy"]))
    assert [r.reward for r in scored] == [0.0, 1.0, 0.5, 0.5, 0.0, 1.0]
    assert stub.requests == 2 * (6 + 1)
    assert scorer.take_metrics()["judge/inconsistent_fraction"].result() == 0.0


def test_a_judge_that_prefers_a_place_decides_nothing(stub_judge, make_scorer, in_groups) -> None:
    scorer = make_scorer(settings(stub_judge(lambda messages: '{"better": "A"}')))
    assert [r.reward for r in scorer.score(in_groups(["a", "bb", "c"]))] == [0.5, 0.5, 0.5]
    assert scorer.take_metrics()["judge/inconsistent_fraction"].result() == 1.0


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9])
def test_the_mean_of_a_group_is_a_half_whatever_the_judge_says(size: int, stub_judge, make_scorer, in_groups) -> None:
    """What one wins, the other loses. With an even number all meet equally many, so the plain mean is 1/2."""
    import zlib

    stub = stub_judge(lambda messages: f'{{"better": "{"A" if zlib.crc32(str(messages).encode()) % 2 else "B"}"}}')
    scored = make_scorer(settings(stub, opponents=7)).score(in_groups([f"response {n}" for n in range(size)]))
    rewards = [r.reward for r in scored]
    if size % 2 == 0 or size - 1 <= 7:
        assert sum(rewards) / size == pytest.approx(0.5)
    assert all(0 <= reward <= 1 for reward in rewards)


def test_a_large_group_has_bounded_calls(longer, make_scorer, in_groups) -> None:
    stub = longer()
    shortest, *_, longest = make_scorer(settings(stub, opponents=4)).score(in_groups(["x" * n for n in range(1, 17)]))
    assert stub.requests == 2 * 16 * 4 // 2
    assert (shortest.reward, longest.reward) == (0.0, 1.0)


def test_equal_responses_tie_without_a_question(longer, make_scorer, in_groups) -> None:
    stub = longer()
    scored = make_scorer(settings(stub)).score(in_groups(["same", "same", "same!"]))
    assert [r.reward for r in scored] == [0.25, 0.25, 1.0]
    assert stub.requests == 2  # both pairs are the same texts


def test_a_greedy_response_changes_no_other_score(longer, make_scorer, in_groups) -> None:
    stub = longer()
    samples = ["a", "bbb", "cc"]
    alone = make_scorer(settings(stub)).score(in_groups(samples))
    with_greedy = make_scorer(settings(stub)).score(in_groups([*samples, "dd"], greedy=True))
    assert [r.reward for r in with_greedy[:3]] == [r.reward for r in alone] == [0.0, 1.0, 0.5]
    assert with_greedy[3].reward == pytest.approx((1 + 0 + 0.5) / 3)


def test_one_alone_meets_the_answer(longer, make_scorer, in_groups) -> None:
    scorer = make_scorer(settings(longer()))
    assert scorer.score(in_groups(["long one"], greedy=True, answer="short"))[0].reward == 1.0
    (missing,) = scorer.score(in_groups(["long one"]))
    assert missing.status is RewardStatus.MISSING
    assert "alone in its group" in missing.status_detail


def test_a_comparison_without_a_verdict_is_left_out(longer, make_scorer, in_groups) -> None:
    def fault(count: int, prompt: str) -> str:
        return "nonsense" if ("bad" in prompt and "worse" in prompt) or "never" in prompt else ""

    stub = longer(fault)
    scored = make_scorer(settings(stub)).score(in_groups(["bad", "worse", "c"], ["never", "x", "yy"]))
    assert [r.reward for r in scored] == [1.0, 1.0, 0.0, None, 0.0, 1.0]
    assert scored[3].status is RewardStatus.ERROR
    assert "none of its comparisons has a result" in scored[3].status_detail
