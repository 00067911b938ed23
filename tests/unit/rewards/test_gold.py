"""The gold check: every gold answer must reach the top score, and those that do not are named."""

from typing import Any

import pytest

from burnish.rewards import check_gold, gold_response
from burnish.types import Prompt, RewardStatus


def _prompt(name: str, answer: Any, **columns: Any) -> Prompt:
    return Prompt(id=name, text="?", answer=answer, domain=columns.pop("domain", "sums"), columns=columns)


def test_what_a_perfect_model_would_say() -> None:
    assert gold_response(_prompt("a", 7)) == "7"
    assert gold_response(_prompt("a", 7, completion="So 7.")) == "So 7."
    assert gold_response(_prompt("a", 7, completion="So 7.", gold_response="It is 7")) == "It is 7"
    assert gold_response(_prompt("a", ["x", "y"])) == "x"
    assert gold_response(_prompt("a", None)) is None
    assert gold_response(_prompt("a", 1, choices=["x", "y"])) == "B"
    assert gold_response(_prompt("a", 1, endings=["x", "y"]), options_column="endings") == "B"
    assert gold_response(_prompt("a", 7, choices=["x", "y"])) == "7"  # the reward says that there is no such option


@pytest.mark.slow
def test_report_names_the_rows_that_fall_short(make_scorer) -> None:
    rows = [
        _prompt("good", "7", gold_response="The answer is \\boxed{7}"),
        _prompt("bad", "7", gold_response="The answer is 8"),
        _prompt("empty", None),
        _prompt("unsure", "", gold_response="7", domain="odd"),
    ]
    report = check_gold(rows, make_scorer({"name": "math", "timeout_seconds": 60}))
    assert (report.checked, report.without_gold) == (3, ("empty",))
    wrong, missing = report.failures
    assert (wrong.prompt_id, wrong.gold, wrong.score) == ("bad", "The answer is 8", 0.0)
    found = (missing.prompt_id, missing.domain, missing.score, missing.status)
    assert found == ("unsure", "odd", None, RewardStatus.MISSING)


def test_judged_by_the_rewards_that_look_at_the_answer(make_scorer) -> None:
    scorer = make_scorer("exact", "format")
    rows = [_prompt("a", "7")]
    assert len(check_gold(rows, scorer, top_score=2.0).failures) == 1
    assert check_gold(rows, scorer, labels=scorer.answer_labels).failures == ()


DENSE = """
from burnish.types import Score

def dense(response, answer, response_tokens):
    # 1 shared out over the letters of the answer and the end after them; token 7 earns nothing
    share = 1 / (len(answer) + 1)
    right = [token != 7 for token in response_tokens]
    return Score(sum(share * r for r in right), parts={"tokens": len(right)}, token_rewards=[share * r for r in right])
"""


def test_dense_rewards_are_given_the_tokens_that_a_policy_would_sample(make_scorer, reward_file) -> None:
    scorer = make_scorer({"name": f"{reward_file(DENSE)}:dense", "weight": 2.0}, {"name": "exact", "weight": 0.5})
    assert scorer.answer_labels == ("dense", "exact")
    assert scorer.token_labels == ("dense",)
    rows = [_prompt("a", "12"), _prompt("b", "345")]
    asked = []

    def encode(prompt: Prompt, text: str) -> list[int]:
        asked.append((prompt.id, text))
        return [1] * len(text) + [9]

    report = check_gold(rows, scorer, top_score=2.0, labels=scorer.answer_labels, encode=encode)
    assert asked == [("a", "12"), ("b", "345")]
    assert report.failures == ()
    parts = {part.name: (part.mean, part.lowest, part.count) for part in report.parts}
    assert parts["dense"] == pytest.approx((1.0, 1.0, 2))
    assert parts["dense/tokens"] == (3.5, 3.0, 2)
    assert parts["exact"] == (1.0, 1.0, 2)
    assert parts["(total)"] == pytest.approx((2.5, 2.5, 2))
    wrong = check_gold(rows, scorer, top_score=2.0, labels=scorer.answer_labels, encode=lambda *_: [7, 1, 9])
    assert [round(failure.score or 0, 4) for failure in wrong.failures] == [1.6667, 1.5]


def test_of_several_solutions_one_has_to_pass(make_scorer, reward_file) -> None:
    right = reward_file("def right(response, solutions):\n    return float(response.endswith('right'))\n")
    scorer = make_scorer({"name": f"{right}:right"})
    rows = {"listed": ["wrong", "right"], "as JSON": '["right"]', "too late": [*["wrong"] * 5, "right"]}
    rows |= {"none": "[]", "one program": "right"}
    prompts = [_prompt(name, None, solutions=solutions) for name, solutions in rows.items()]
    assert [gold_response(prompt) for prompt in prompts] == ["wrong", "right", "wrong", None, "right"]
    report = check_gold(prompts, scorer)
    assert [failure.prompt_id for failure in report.failures] == ["too late"]
    assert report.without_gold == ("none",)


def test_a_reward_that_asks_for_the_column_of_the_answers_compares_with_them(make_scorer, reward_file) -> None:
    file = reward_file("def same(response, final): return response == final\ndef hard(response, level): return 1.0\n")
    scorer = make_scorer({"name": f"{file}:same"}, {"name": f"{file}:hard"})
    scorer.check_prompts([_prompt("a", "7", final="7", level="7"), _prompt("b", "8", final="8", level="7")])
    assert scorer.answer_labels == ("same",)


def test_nothing_to_check(make_scorer) -> None:
    report = check_gold([], make_scorer("exact"))
    assert (report.checked, report.failures) == (0, ())


def test_an_answer_that_holds_tests_is_no_solution() -> None:
    tests = '{"inputs": ["1"], "outputs": ["2"]}'
    assert gold_response(Prompt("p", text="x", answer=tests)) is None
    assert gold_response(Prompt("p", text="x", answer={"assert_case": ["assert f(1)"]})) is None
    assert gold_response(Prompt("p", text="x", answer='{"a": 1}')) == '{"a": 1}'
