"""A clock of our own, which only the ways move on."""

from collections.abc import Iterable
from itertools import cycle

import pytest

from burnish.forward.race import BUDGET_SECONDS, Contender, race


class Course:
    """Ways by name and seconds, in turn where there are several; `runs` counts them."""

    def __init__(self, **seconds: float | Iterable[float]) -> None:
        self.now = 0.0
        self.runs = dict.fromkeys(seconds, 0)
        self.ways = [self._way(name, cycle([s] if isinstance(s, float) else s)) for name, s in seconds.items()]

    def _way(self, name: str, seconds: Iterable[float]) -> Contender:
        turns = iter(seconds)

        def run() -> None:
            self.runs[name] += 1
            self.now += next(turns)

        return Contender(name, run)

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("fast", "plain", "winner"),
    [(0.010, 0.020, "fast"), (0.020, 0.010, "plain"), (0.010, 0.0101, "plain"), (0.010, 0.0103, "fast")],
)
def test_the_faster_one_wins_and_the_plainer_one_where_they_are_level(fast: float, plain: float, winner: str) -> None:
    course = Course(fast=fast, plain=plain)
    outcome = race(course.ways, clock=course.clock, wall=course.clock)
    assert outcome.winner == winner
    assert outcome.seconds == pytest.approx({"fast": fast, "plain": plain})


def test_of_three_the_fastest_wins_also_from_the_middle() -> None:
    course = Course(kernels=0.030, fused=0.010, own=0.020)
    assert race(course.ways, clock=course.clock, wall=course.clock).winner == "fused"
    course = Course(kernels=0.0099, fused=0.010, own=0.020)
    assert race(course.ways, clock=course.clock, wall=course.clock).winner == "fused"  # not worth its parts


def test_rounds_in_which_the_machine_is_busy_do_not_count() -> None:
    """Two of three rounds of the faster way are held up."""
    course = Course(fast=[0.010, 0.060, 0.060], plain=0.020)
    assert race(course.ways, clock=course.clock, wall=course.clock).winner == "fast"


def test_it_ends_when_it_is_clear_and_when_time_is_up() -> None:
    course = Course(fast=0.010, plain=0.020)
    race(course.ways, clock=course.clock, wall=course.clock)
    assert course.runs == {"fast": 3, "plain": 3}  # nothing can change it any more
    course = Course(fast=0.010, plain=[0.011, 0.012])
    race(course.ways, clock=course.clock, wall=course.clock)
    assert course.runs == {"fast": 5, "plain": 5}  # close, but every round says the same
    course = Course(fast=2.0, plain=2.1)
    race(course.ways, clock=course.clock, wall=course.clock)
    assert course.runs == {"fast": 3, "plain": 3}  # three rounds at least
    assert course.now > BUDGET_SECONDS


def test_short_ones_are_repeated_until_a_clock_can_tell() -> None:
    course = Course(fast=1e-4, plain=4e-4)
    outcome = race(course.ways, clock=course.clock, wall=course.clock)
    assert outcome.seconds == pytest.approx({"fast": 1e-4, "plain": 4e-4})
    assert course.runs == {"fast": 1 + 3 * 20, "plain": 1 + 3 * 5}


def test_a_lead_that_one_round_contradicts_is_not_clear() -> None:
    course = Course(fast=[0.010, 0.017, 0.010], plain=0.020)
    assert race(course.ways, clock=course.clock, wall=course.clock).winner == "fast"
    assert course.runs == {"fast": 5, "plain": 5}


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    assert race(Course(fast=0.0, plain=0.0).ways, clock=lambda: 0.0).winner == "plain"
