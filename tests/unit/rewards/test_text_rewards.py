"""Rewards on text and length, by hand."""

from typing import Any

import pytest

from burnish.errors import ConfigError
from burnish.rewards.builtins.reading_rows import NoScoreError
from burnish.rewards.builtins.text import Exact, Format, Length, Overlong, Regex, Repetition


def test_exact() -> None:
    assert Exact()(" 7\n", 7) == 1.0
    assert Exact(strip=False)(" 7", "7") == 0.0
    assert Exact()("Yes", "yes") == 0.0
    assert Exact(ignore_case=True)("Yes", "yes") == 1.0
    assert Exact()("7", None) is None
    assert Exact()("4", 4.0) == Exact()("two", ["2", "two"]) == 1.0
    with pytest.raises(NoScoreError, match="is an object"):
        Exact()("{'value': '2'}", {"value": "2"})


def test_regex() -> None:
    assert Regex(r"\d+")("about 12") == 1.0
    assert Regex(r"\d+", full=True)("about 12") == 0.0
    with pytest.raises(ConfigError, match="not a regular expression: '\\('"):
        Regex("(")


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("<think>hm</think><answer>7</answer>", 1.0),
        ("\n<think>a\nb</think>\n\n<answer> 7 </answer>\n", 1.0),
        ("<think>hm</think><answer>7</answer> done", 0.0),
        ("<answer>7</answer><think>hm</think>", 0.0),
        ("<think></think><answer>7</answer>", 0.0),
        ("<think>hm</think><answer>7", 0.0),
        ("<think>a</think><think>b</think><answer>7</answer>", 0.0),
        ("<think>a <answer>6</answer></think><answer>7</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_format(response: str, score: float) -> None:
    assert Format()(response) == score


def test_format_of_other_tags_and_an_opened_one() -> None:
    assert Format(tags=["plan", "act", "check"])("<plan>a</plan><act>b</act><check>c</check>") == 1.0
    assert Format(opened=True)("hm</think><answer>7</answer>") == 1.0
    assert Format(opened=True)("<think>hm</think><answer>7</answer>") == 0.0


@pytest.mark.parametrize(("tokens", "penalty"), [(50, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (110, -1.0)])
def test_overlong_golden(tokens: int, penalty: float) -> None:
    assert Overlong(max_tokens=100, buffer_tokens=20)(tokens) == pytest.approx(penalty)


def test_length() -> None:
    target = Length(target=100)
    assert [target("", n) for n in (0, 50, 100, 150, 200, 500)] == [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]
    assert [Length(maximum=3, unit="words")(text, 0) for text in ("a b c", "a b c d")] == [1.0, 0.0]
    assert Length(maximum=3, unit="characters")("abcd", 1) == 0.0


def test_repetition() -> None:
    assert Repetition(n=1)("a b a b", []) == pytest.approx(-0.5)
    assert Repetition(n=2)("a b a b", []) == pytest.approx(-1 / 3)
    assert Repetition(n=3)("a b", []) == 0.0
    assert Repetition(n=1, unit="tokens")("", [5, 5, 5, 5]) == pytest.approx(-0.75)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Length, {}, "exactly one of target and maximum"),
        (Length, {"target": 1, "maximum": 2}, "exactly one of target and maximum"),
        (Length, {"target": 0}, "at least 1"),
        (Overlong, {"max_tokens": 10, "buffer_tokens": 20}, "buffer_tokens <= max_tokens"),
        (Repetition, {"n": 0}, "at least 1"),
        (Format, {"tags": "think"}, "give a list"),
    ],
)
def test_impossible_options(make, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**options)
