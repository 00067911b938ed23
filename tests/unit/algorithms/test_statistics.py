"""Numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.algorithms.statistics import explained_variance, pass_at_k, variance_of, wilson_interval


def test_variance_from_moments() -> None:
    """1, 3: mean 2, mean of squares 5."""
    assert variance_of(5.0, 2.0) == 1.0
    assert variance_of(0.1**2 - 1e-18, 0.1) == 0.0  # rounding, and never below 0


def test_explained_variance() -> None:
    assert explained_variance(0.0, 2.0) == 1.0
    assert explained_variance(2.0, 2.0) == 0.0
    assert explained_variance(5.0, 2.0) == -1.5
    assert explained_variance(0.0, 1e-13) is None


def test_the_interval_of_wilson() -> None:
    low, high = wilson_interval(0.5, 100)
    assert (low, high) == (pytest.approx(0.40383, abs=1e-5), pytest.approx(0.59617, abs=1e-5))
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1.0)


def test_pass_at_k_counts_draws_without_replacement() -> None:
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 1, 2) == pytest.approx(1 - 3 / 6)
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0


def test_pass_at_k_wants_enough_samples() -> None:
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_grows_with_k_and_with_solved(n: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, n))
    chances = [pass_at_k(n, solved, k) for k in range(1, n + 1)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(solved / n)
