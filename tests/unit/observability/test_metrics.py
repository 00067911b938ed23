"""Readings merge by their own rule."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from burnish.observability.metrics import MetricStore, mean, mean_of, on_host, total
from burnish.types import Metric, Reduction


def test_a_mean_is_weighted_and_never_a_mean_of_means() -> None:
    store = MetricStore()
    store.add("reward", mean(10.0, 1))
    store.add("reward", mean(0.0, 3))
    assert store.row() == {"reward": 2.5}


def test_each_reduction() -> None:
    store = MetricStore()
    for value in (3.0, 1.0, 2.0):
        store.merge({reduction.value: Metric(reduction, value) for reduction in Reduction if reduction != "mean"})
    assert store.row() == {"last": 2.0, "max": 3.0, "min": 1.0, "sum": 6.0}


def test_nothing_is_read_before_the_row(waits: Callable[[Counter[str]], AbstractContextManager[Any]]) -> None:
    counted: Counter[str] = Counter()
    readings = [(torch.tensor(value), torch.tensor(2)) for value in (3.0, 1.0)]
    with waits(counted):
        step, part = MetricStore(), MetricStore()
        for value, count in readings:
            part.add("loss", mean(value, count))
            part.add("peak", Metric(Reduction.MAX, value))
        step.merge(part.merged())
        step.add("loss", mean(2.0, 0))
        assert not counted
        assert step.row() == {"loss": 1.0, "peak": 3.0}
        assert counted["_local_scalar_dense"] > 0


def test_the_order_of_additions_is_that_of_the_parts() -> None:
    """In float32 1e8 + 1 is 1e8: (1e8 + 1) + (-1e8 + 1) is 0, one number after the other gives 1."""
    step = MetricStore()
    for value in (1e8, -1e8):
        part = MetricStore()
        part.add("x", mean(torch.tensor(value), 1))
        part.add("x", mean(torch.tensor(1.0), 1))
        step.merge(part.merged())
    assert step.row() == {"x": 0.0}


def test_tensors_of_a_device_are_fetched_together() -> None:
    """Each kind of number in one go, and it keeps its kind. A GPU's part is played by a tensor that says it is on
    one."""

    class Away(torch.Tensor):
        device = torch.device("cuda")  # type: ignore[assignment]
        __torch_function__ = torch._C._disabled_torch_function_impl  # what is computed from it is a plain tensor

    count = torch.tensor(4).as_subclass(Away)
    metrics = {
        "a": mean(torch.tensor(1.0).as_subclass(Away), count).merge(mean(torch.tensor(2.0).as_subclass(Away), count)),
        "b": mean(0.5, torch.tensor(1.0)),
    }
    here = on_host(metrics)
    assert (here["a"].value.dtype, here["a"].weight.dtype) == (torch.float32, torch.int64)
    assert [type(scalar) for scalar in (here["a"].value, here["a"].weight, here["a"].later[0].value)] == [Tensor] * 3
    assert here["b"] is not None
    assert {name: metric.result() for name, metric in here.items()} == {"a": 3.0 / 8, "b": 0.5}


def test_what_measured_nothing_is_left_out() -> None:
    store = MetricStore()
    store.add("empty", mean_of([]))
    assert store.row() == {}


def test_one_name_has_one_reduction() -> None:
    store = MetricStore()
    store.add("x", total(1.0))
    with pytest.raises(ValueError, match="metric x was sum and now comes as max"):
        store.add("x", Metric(Reduction.MAX, 1.0))


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1), min_size=1))
def test_the_cut_into_readings_does_not_matter(parts: list[list[float]]) -> None:
    cut, whole = MetricStore(), MetricStore()
    for part in parts:
        cut.add("x", mean_of(part))
    whole.add("x", mean_of([value for part in parts for value in part]))
    assert math.isclose(cut.row()["x"], whole.row()["x"], rel_tol=1e-9, abs_tol=1e-6)
