"""Numbers of a reward model's evaluation, computed by hand."""

import math

import pytest
import torch

from burnish.models.reward_learner import ComparedScores
from burnish.trainers.reward_model import preference_metrics as measured
from burnish.trainers.reward_model.loop import PreferenceLoss
from burnish.trainers.reward_model.preference_metrics import LengthRule, ScoredComparison

RIGHT = ScoredComparison((1.0, 0.0), (3, 5), 0, margin=1.0)
WRONG = ScoredComparison((0.0, 3.0), (4, 2), 0, margin=2.0)
DRAW = ScoredComparison((2.0, 2.0), (4, 4), 1, margin=2.0)


def test_accuracy_counts_a_draw_half() -> None:
    assert measured.accuracy([RIGHT, WRONG, DRAW]) == 0.5
    assert ScoredComparison((1.0, 1.0, 1.0, 0.0), (1, 1, 1, 1), 0).hit == pytest.approx(1 / 3)


def test_loss_is_minus_log_sigmoid_of_the_gap() -> None:
    assert RIGHT.loss == pytest.approx(math.log(1 + math.exp(-1)))
    assert WRONG.loss == pytest.approx(math.log(1 + math.exp(3)))


def test_calibration() -> None:
    confident = 1 / (1 + math.exp(-3.0))
    assert measured.calibration_error([WRONG]) == pytest.approx(confident)
    assert measured.calibration_error([DRAW]) == 0.0
    sure = ScoredComparison((3.0, 0.0), (1, 1), 0)
    assert measured.calibration_error([sure, WRONG]) == pytest.approx(confident - 0.5)


def test_length_correlation_looks_inside_comparisons() -> None:
    longer_is_better = [ScoredComparison((float(a), float(b)), (a, b), 0) for a, b in ((100, 90), (3, 9))]
    assert measured.length_correlation(longer_is_better) == pytest.approx(1.0)
    # Long prompts' answers all score low, but inside a pair the longer one scores higher.
    shifted = [ScoredComparison((-100 + 1.0, -100.0), (101, 100), 0), ScoredComparison((1.0, 0.0), (2, 1), 0)]
    assert measured.length_correlation(shifted) == pytest.approx(1.0)
    assert measured.length_correlation([DRAW]) is None


def test_the_length_rule_is_learned_from_training_pairs() -> None:
    rule = LengthRule.learned([([3, 5], 0), ([2, 9], 0), ([9, 2], 0)])
    assert not rule.prefers_longer
    assert rule.accuracy([RIGHT, WRONG, DRAW]) == pytest.approx(0.5)
    assert LengthRule(True).accuracy([WRONG]) == 1.0


def test_buckets() -> None:
    assert measured.gap_buckets([RIGHT, WRONG, DRAW]) == {"0-0.25": 0.5, "1-2": 1.0, "2+": 0.0}
    assert measured.margin_buckets([RIGHT, WRONG, DRAW]) == {"1": 1.0, "2": 0.25}


def test_describe_and_histogram() -> None:
    row = measured.describe([RIGHT, WRONG], LengthRule(False))
    assert row["eval/accuracy"] == 0.5
    assert row["eval/score_gap"] == pytest.approx(-1.0)
    assert row["eval/score_mean"] == pytest.approx(1.0)
    assert row["eval/length_rule_accuracy"] == 0.5
    found = measured.histogram([RIGHT, WRONG], bins=3)
    assert found["best"] == [1, 1, 0]
    assert found["others"] == [1, 0, 1]
    assert found["edges"] == pytest.approx([0, 1, 2, 3])


def compared(scores: list[list[float]], best: list[int], **fields: torch.Tensor) -> ComparedScores:
    table, size = torch.tensor(scores, requires_grad=True), len(best)
    plain = {"mask_BK": torch.ones_like(table, dtype=torch.bool), "margin_B": torch.zeros(size)}
    given = plain | {"tie_B": torch.zeros(size, dtype=torch.bool)} | fields
    return ComparedScores(scores_BK=table, best_B=torch.tensor(best), **given)


def test_pairs_and_candidates_agree_on_two() -> None:
    both = compared([[1.0, 0.0], [0.0, 3.0]], [0, 0])
    pairs, candidates = PreferenceLoss("bradley_terry")(both, 2), PreferenceLoss("best_of")(both, 2)
    assert float(pairs.loss.detach()) == pytest.approx((RIGHT.loss + WRONG.loss) / 2)
    assert float(pairs.loss.detach()) == pytest.approx(float(candidates.loss.detach()))
    assert pairs.metrics["train/accuracy"].result() == 0.5
    assert pairs.metrics["rm/score_gap"].result() == pytest.approx(-1.0)


def test_the_best_may_stand_second() -> None:
    value = PreferenceLoss("bradley_terry")(compared([[0.0, 1.0]], [1]), 1)
    assert float(value.loss.detach()) == pytest.approx(RIGHT.loss)


def test_a_tie_is_half_a_win_for_each() -> None:
    tie = compared([[1.0, 0.0]], [0], tie_B=torch.tensor([True]), margin_B=torch.tensor([5.0]))
    value = PreferenceLoss("bradley_terry", margins=True)(tie, 1)
    expected = 0.5 * math.log(1 + math.exp(-1)) + 0.5 * math.log(1 + math.e)
    assert float(value.loss.detach()) == pytest.approx(expected)
    assert value.metrics["train/accuracy"].result() is None


def test_a_margin_asks_for_a_lead() -> None:
    value = PreferenceLoss("bradley_terry", margins=True)(compared([[1.0, 0.0]], [0], margin_B=torch.tensor([1.0])), 1)
    assert float(value.loss.detach()) == pytest.approx(math.log(2))


def test_missing_candidates_take_no_part() -> None:
    scores = compared([[0.0, 0.0, 99.0]], [0], mask_BK=torch.tensor([[True, True, False]]))
    assert float(PreferenceLoss("best_of")(scores, 1).loss.detach()) == pytest.approx(math.log(2))
