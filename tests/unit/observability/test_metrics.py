"""Readings merge by their own rule."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from burnish.observability.metrics import MetricStore, last, maximum, mean, mean_of, minimum, total


def test_a_mean_is_weighted_and_never_a_mean_of_means() -> None:
    store = MetricStore()
    store.add("reward", mean(10.0, 1))
    store.add("reward", mean(0.0, 3))
    assert store.row() == {"reward": 2.5}


def test_each_reduction() -> None:
    store = MetricStore()
    for value in (3.0, 1.0, 2.0):
        store.merge(
            {"sum": total(value), "max": maximum(value), "min": minimum(value), "last": last(value)}, prefix="x/"
        )
    assert store.take() == {"x/last": 2.0, "x/max": 3.0, "x/min": 1.0, "x/sum": 6.0}
    assert store.row() == {}


def test_tensors_become_floats_only_in_the_row() -> None:
    store = MetricStore()
    store.add("loss", mean(torch.tensor(3.0), torch.tensor(2.0)))
    store.add("loss", mean(torch.tensor(1.0), torch.tensor(2.0)))
    assert store.row() == {"loss": 1.0}


def test_what_measured_nothing_is_left_out() -> None:
    store = MetricStore()
    store.add("empty", mean_of([]))
    assert store.row() == {}


def test_one_name_has_one_reduction() -> None:
    store = MetricStore()
    store.add("x", total(1.0))
    with pytest.raises(ValueError, match="metric x was sum and now comes as max"):
        store.add("x", maximum(1.0))


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1), min_size=1))
def test_the_cut_into_readings_does_not_matter(parts: list[list[float]]) -> None:
    cut, whole = MetricStore(), MetricStore()
    for part in parts:
        cut.add("x", mean_of(part))
    whole.add("x", mean_of([value for part in parts for value in part]))
    assert math.isclose(cut.row()["x"], whole.row()["x"], rel_tol=1e-9, abs_tol=1e-6)
