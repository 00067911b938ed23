"""Verdicts are read exactly or not at all, and only at the end of an answer."""

from typing import Any

import pytest

from burnish.rewards.judging import verdicts
from burnish.rewards.judging.verdicts import AnswerForm, Scale, UnreadableVerdictError, better_wanted, score_wanted

TEN = Scale(1.0, 10.0)
WORDS = Scale.of({"CORRECT": 1, "PARTLY": 0.4, "WRONG": 0})


def read(wanted: AnswerForm[Any], reply: str) -> Any:
    """The verdict; None where there is none to be read."""
    try:
        return wanted.read(reply)
    except UnreadableVerdictError:
        return None


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"score": 10}', 1.0),
        ('{"score": 1}', 0.0),
        ('{"score": 5.5}\n', 0.5),
        ('Good.\n\n```json\n{"score": 10, "why": "short {sic}"}\n```', 1.0),
        ('It says {"score": 10}, which is no verdict.\n{"score": 1}', 0.0),
        ('<think>{"score": 2}</think>{ "score" : 10 }', 1.0),
    ],
)
def test_a_score_in_json(reply: str, score: float) -> None:
    assert score_wanted(TEN, "json").read(reply) == score


@pytest.mark.slow_cases("reply18")
@pytest.mark.parametrize(
    "reply",
    [
        "",
        "10",
        '{"score": "10"}',
        '{"score": true}',
        '{"score": null}',
        '{"score": 11}',
        '{"score": 0}',
        '{"score": NaN}',
        '{"score": 1e999}',
        '{"score": 1' + "0" * 5000 + "}",
        '{"score": [10]}',
        '{"scores": {"score": 10}}',
        '{"rating": 10}',
        '{"score": 10, "score": 1}',
        '{"score": 10} is what I would give',
        '{"score": 10',
        'score": 10}',
        '["score", 10]',
        '{"score":' * 3000 + "}",
    ],
)
def test_what_is_no_score_in_json(reply: str) -> None:
    assert read(score_wanted(TEN, "json"), reply) is None


@pytest.mark.parametrize(
    ("style", "reply", "score"),
    [
        ("tag", "Fine. <score>1</score> no: <score> 10 </score>\n", 1.0),
        ("tag", "<score>10</score> or so", None),
        ("tag", "<score>ten</score>", None),
        ("tag", "<score>0x9</score>", None),
        ("last_line", "I think\n10\n\n", 1.0),
        ("last_line", "I think 10", None),
        ("last_line", "10/10", None),
        ("last_line", "", None),
    ],
)
def test_other_styles(style: Any, reply: str, score: float | None) -> None:
    assert read(score_wanted(TEN, style), reply) == score


def test_a_word_of_the_scale_may_be_a_number() -> None:
    assert score_wanted(Scale.of({"5": 1, "1": 0}), "json").read('{"score": 5}') == 1


def test_an_escaped_key_is_no_verdict() -> None:
    """A response may hold it, and the judge quote it: only plain keys are removed from responses."""
    with pytest.raises(UnreadableVerdictError, match="has no 'score'"):
        score_wanted(Scale.of([1, 10]), "json").read('It ends with {"\\u0073core": 10}')


def test_a_number_in_quotation_marks_is_called_text() -> None:
    with pytest.raises(UnreadableVerdictError, match="'7' is text, not a number from 1 to 10; write it without quot"):
        score_wanted(Scale.of([1, 10]), "json").read('{"score": "7"}')


def test_words_with_numbers() -> None:
    assert score_wanted(WORDS, "json").read('{"score": "partly"}') == 0.4
    assert score_wanted(WORDS, "tag").read("<score>CORRECT</score>") == 1.0
    assert score_wanted(WORDS, "last_line").read("so it is\nWRONG") == 0.0
    for reply in ('{"score": 1}', '{"score": "CORRECTLY"}', '{"score": "NOT CORRECT"}'):
        assert read(score_wanted(WORDS, "json"), reply) is None


def test_several_scores() -> None:
    named, in_order = (verdicts.named_scores_wanted(["a", "b"], TEN, style) for style in ("json", "tag"))
    assert named.read('{"scores": {"b": 1, "a": 10}}') == in_order.read("<scores>10, 1</scores>") == (1.0, 0.0)
    listed = verdicts.listed_scores_wanted(2, TEN, "json")
    assert listed.read('{"scores": [10, 1]}') == (1.0, 0.0)
    for wanted, reply in (
        (named, '{"scores": {"a": 10}}'),
        (named, '{"scores": {"a": 10, "b": 1, "c": 1}}'),
        (named, '{"scores": [10, 1]}'),
        (listed, '{"scores": [10]}'),
        (listed, '{"scores": [10, 1, 1]}'),
        (listed, '{"scores": [10, 11]}'),
        (verdicts.listed_scores_wanted(2, TEN, "tag"), "<scores>10</scores>"),
    ):
        assert read(wanted, reply) is None


def test_which_is_better() -> None:
    assert better_wanted("json").read('A or B? {"better": "b"}') == "B"
    assert better_wanted("tag").read("<better>tie</better>") == "tie"
    assert better_wanted("last_line").read("Clearly:\nA") == "A"
    assert read(better_wanted("last_line"), "A is better") is None


@pytest.mark.parametrize("style", ["json", "tag", "last_line"])
@pytest.mark.parametrize("scale", [TEN, WORDS, Scale(0.0, 1.0), Scale(-2.5, -1.5)])
def test_the_example_that_a_judge_is_shown_can_be_read(style: Any, scale: Scale) -> None:
    """As every example of an instruction, which is its third line from below, or more."""
    wanted = [score_wanted(scale, style), better_wanted(style)]
    if style != "last_line":
        wanted += [
            verdicts.named_scores_wanted(["a", "b"], scale, style),
            verdicts.listed_scores_wanted(3, scale, style),
        ]
    for each in wanted:
        assert each.read(each.instruction.splitlines()[1]) is not None
