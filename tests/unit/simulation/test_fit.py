"""Fits of seconds: exact numbers are found again, and what cannot be told apart does no harm."""

from dataclasses import astuple, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import DataError
from burnish.simulation.fit import decoded_step, fit_decoding, fit_phase, nonnegative_least_squares, passes
from burnish.simulation.settings import Decoding


def test_passes_with_and_without_waiting() -> None:
    assert passes([3, 5, 2], places=8) == 5
    assert passes([3, 5, 2], places=2) == 5  # the third begins after 3 passes
    assert passes([3, 5, 2], places=1) == 10
    assert passes([], places=4) == 0


def test_a_decoded_step_counts_rows_and_context() -> None:
    step = decoded_step([[(10, 3), (4, 2)]], places=8, seconds=1.5)
    # The first row attends to 10, 11, 12 tokens, the second to 4 and 5.
    assert (step.iterations, step.tokens, step.context, step.seconds) == (3, 5, 33 + 9, 1.5)


def test_decoding_is_found_again() -> None:
    true = Decoding(0.02, 0.003, 1e-5)
    shapes = [[(10, 5)] * 4, [(10, 50), (10, 5)], [(200, 20)] * 7, [(5, 100)] * 3, [(300, 30), (10, 80)]]
    steps = []
    for rows in shapes:
        step = decoded_step([rows], places=8, seconds=0.0)
        cost = step.iterations * 0.02 + step.tokens * 0.003 + step.context * 1e-5
        steps.append(replace(step, seconds=cost))
    assert astuple(fit_decoding(steps)) == pytest.approx(astuple(true))


def test_steps_that_are_alike_need_one_term_only() -> None:
    step = decoded_step([[(10, 4)] * 6], places=8, seconds=2.0)
    found = fit_decoding([step, step, step])
    assert found.seconds(4, 6, 60) == pytest.approx(2.0)
    assert sum(value > 0 for value in (found.base_seconds, found.row_seconds, found.context_seconds)) == 1


def test_no_step_is_an_error() -> None:
    with pytest.raises(DataError, match="no step"):
        fit_decoding([])


def test_phases() -> None:
    both = fit_phase([(1, 12.0), (2, 7.0), (4, 4.5)])  # 2 + 10 / N
    assert (both.fixed_seconds, both.divided_seconds) == pytest.approx((2, 10))
    one = fit_phase([(4, 3.0)])
    assert (one.fixed_seconds, one.divided_seconds) == (0, 12)
    assert fit_phase([(2, 3.0), (2, 5.0)]).seconds(2) == pytest.approx(4)
    slower = fit_phase([(1, 1.0), (2, 2.0)])  # more devices are slower: nothing can be divided
    assert slower.divided_seconds == 0
    with pytest.raises(DataError, match="at least one number of devices"):
        fit_phase([])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=8))
def test_coefficients_are_never_negative(rows: list[tuple[float, float, float]]) -> None:
    table = [(a, b) for a, b, _ in rows]
    found = nonnegative_least_squares(table, [target for _, _, target in rows])
    assert min(found) >= 0
