"""How far judge and humans agree: figures by hand, and from a scorer."""

import json
import math
from typing import Any

import pytest
from stub_judge import judge_at, shown

from burnish.errors import DataError, RewardError
from burnish.rewards.judging.agreement import agreement, measure_agreement, rank_correlation
from burnish.rewards.judging.options import JudgeOptions, label_value
from burnish.rewards.judging.verdicts import Scale
from burnish.types import Prompt


def test_rank_correlation() -> None:
    assert rank_correlation([(1, 10), (2, 20), (3, 300)]) == 1.0
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == -1.0
    # ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: 1 - 6 * .5 / 60 without ties is .95; with them 4.5 / sqrt(4.5 * 5)
    assert rank_correlation([(1, 1), (2, 2), (2, 3), (9, 4)]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert rank_correlation([(1, 1), (1, 2), (1, 3)]) is None


def test_two_labels_are_compared_by_accuracy() -> None:
    found = agreement([(0.9, 1), (0.5, 1), (0.2, 1), (0.1, 0)], failed=2)
    assert (found.kind, found.value, found.rows, found.failed) == ("accuracy", 0.75, 4, 2)
    assert "accuracy 0.750 (95 %: 0.301 to 0.954)" in str(found)


def test_more_labels_by_rank() -> None:
    pairs = [(float(score), float(human)) for score, human in zip([1, 2, 3, 4, 5], [1, 2, 3, 5, 4], strict=True)]
    found = agreement(pairs)
    assert (found.kind, found.value) == ("rank correlation", pytest.approx(0.9))
    reach = 1.959964 * math.sqrt(1.06 / 2)
    assert found.high == pytest.approx(math.tanh(math.atanh(0.9) + reach))
    assert "agreement is undefined on 3 rows" in str(agreement([(0.5, 1), (0.5, 2), (0.5, 3)]))


def rows(*labels: Any) -> list[Prompt]:
    return [
        Prompt(str(number), text="Q?", columns={"human": label, "response": "x" * number})
        for number, label in enumerate(labels, 1)
    ]


def test_a_judge_is_asked_about_labelled_rows_only(stub_judge, make_scorer) -> None:
    stub = stub_judge(lambda m: json.dumps({"score": "GOOD" if len(shown(m)["response"]) > 2 else "BAD"}))
    judge = judge_at(stub, scale={"GOOD": 1, "BAD": 0}, labels="human")
    scorer, options = make_scorer(judge), JudgeOptions(**judge["options"])
    found = measure_agreement(rows("bad", "GOOD", "GOOD", None, 1), scorer, options)
    assert stub.requests == 4
    assert (found.kind, found.rows, found.value) == ("accuracy", 4, 0.75)
    with pytest.raises(DataError, match="row 2"):
        measure_agreement(rows("GOOD", "fine"), scorer, options)
    assert [label_value(Scale.of([1, 10]), text) for text in ("2", " 7.5", "True")] == [2, 7.5, 1]  # of a CSV file
    unanswered = Prompt("1", text="Q?", answer="gold", columns={"human": "GOOD"})
    with pytest.raises(DataError, match="no row"):
        measure_agreement([*rows(None, ""), unanswered], scorer, options)


def test_a_judge_that_gives_no_verdict_is_no_agreement(stub_judge, make_scorer) -> None:
    judge = judge_at(stub_judge(lambda m: "I would rather not."), labels="human")
    said = "none of 2 rows that humans have judged has a verdict; the first: judge 'judge'"
    with pytest.raises(RewardError, match=said):
        measure_agreement(rows(1, 2), make_scorer(judge), JudgeOptions(**judge["options"]))
