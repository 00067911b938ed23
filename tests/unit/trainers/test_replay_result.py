"""What a replay says of its responses, by hand-computed numbers."""

import pytest

from burnish.trainers.replay import Replayed, ReplayedResponse
from burnish.trainers.replay_result import differ, most_changed, summary_of

Side = tuple[float | None, float | None]
"""Score and advantage."""


def row(sample: int, before: Side, after: Side, group: int = 0) -> Replayed:
    old, new = (ReplayedResponse(score, {}, "ok", advantage) for score, advantage in (before, after))
    return Replayed(1, f"p{group}", "default", group, sample, "r", old, new)


ROWS = [
    row(0, (1.0, 0.5), (0.0, -1.0)),
    row(1, (0.0, -0.5), (1.0, 1.0)),
    row(2, (0.0, None), (1.0, None)),
    row(3, (None, None), (2.0, 2.0)),
]


def test_a_summary() -> None:
    found = summary_of(ROWS)
    assert (found.responses, found.scores_changed, found.advantages_changed, found.signs_changed) == (4, 4, 3, 3)
    assert (found.before.scored, found.before.score_mean) == (3, pytest.approx(1 / 3))
    assert (found.before.trained, found.before.advantage_size) == (2, 0.5)
    assert (found.after.scored, found.after.score_mean) == (4, 1.0)
    assert (found.after.trained, found.after.advantage_size) == (3, pytest.approx(4 / 3))
    # Pairs with scores on both sides: 0 and 1 (turned round), 0 and 2 (turned round), 1 and 2 (equal and equal).
    assert found.orders_changed == pytest.approx(2 / 3)
    assert found.score_correlation == pytest.approx(-1.0)
    assert found.advantage_correlation == pytest.approx(-1.0)


def test_pairs_are_of_one_group() -> None:
    rows = [row(0, (1.0, 0.0), (0.0, 0.0), group=0), row(0, (0.0, 0.0), (1.0, 0.0), group=1)]
    assert summary_of(rows).orders_changed is None


def test_nothing_correlates_with_a_constant() -> None:
    found = summary_of([row(0, (1.0, 0.1), (1.0, 0.2)), row(1, (1.0, 0.3), (2.0, 0.6))])
    assert found.score_correlation is None
    assert found.advantage_correlation == pytest.approx(1.0)
    assert summary_of([]).before.score_mean is None


def test_the_most_changed_come_first() -> None:
    rows = [*ROWS, row(4, (1.0, 0.5), (1.0, 0.5)), row(5, (1.0, 0.5), (1.5, 0.5))]
    assert [one.sample_index for one in most_changed(rows, 10)] == [3, 0, 1, 2, 5]
    assert [one.sample_index for one in most_changed(rows, 2)] == [3, 0]


@pytest.mark.parametrize(
    ("old", "new", "different"),
    [
        (1.0, 1.0 + 1e-7, False),
        (1.0, 1.001, True),
        (0.0, 1e-9, False),
        (None, None, False),
        (None, 0.0, True),
        (0.0, None, True),
        (-1.0, 1.0, True),
    ],
)
def test_what_counts_as_different(old: float | None, new: float | None, different: bool) -> None:
    assert differ(old, new) is different
