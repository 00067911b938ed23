"""Metrics with typed reductions: readings of one name merge by their own rule, so no mean of means is ever taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from burnish.types import Metric, Reduction


def mean(total: Any, count: Any) -> Metric:
    """A mean given by its sum and by how many values are in it (floats or 0-d tensors)."""
    return Metric(Reduction.MEAN, total, count)


def mean_of(values: Iterable[float]) -> Metric:
    """The mean of host-side numbers; of none, nothing is logged."""
    listed = list(values)
    return Metric(Reduction.MEAN, float(sum(listed)), float(len(listed)))


def total(value: Any) -> Metric:
    """A quantity that adds up over readings (tokens, seconds, failures)."""
    return Metric(Reduction.SUM, value)


def maximum(value: Any) -> Metric:
    """The largest reading."""
    return Metric(Reduction.MAX, value)


def minimum(value: Any) -> Metric:
    """The smallest reading."""
    return Metric(Reduction.MIN, value)


def last(value: Any) -> Metric:
    """The latest reading (a learning rate, a coefficient)."""
    return Metric(Reduction.LAST, value)


class MetricStore:
    """Collects the readings of one step; tensors stay tensors until `row` is asked for."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, name: str, metric: Metric) -> None:
        """Merge one reading in. Raises ValueError when the name was used with another reduction."""
        known = self._metrics.get(name)
        if known is not None and known.reduction is not metric.reduction:
            raise ValueError(f"metric {name} was {known.reduction} and now comes as {metric.reduction}")
        self._metrics[name] = metric if known is None else known.merge(metric)

    def merge(self, metrics: Mapping[str, Metric], *, prefix: str = "") -> None:
        """Merge many readings in, each name behind `prefix`."""
        for name, metric in metrics.items():
            self.add(prefix + name, metric)

    def row(self) -> dict[str, float]:
        """Names, sorted, to numbers; a metric that measured nothing is left out."""
        results = ((name, metric.result()) for name, metric in sorted(self._metrics.items()))
        return {name: value for name, value in results if value is not None}

    def clear(self) -> None:
        """Begin the next step."""
        self._metrics.clear()

    def take(self) -> dict[str, float]:
        """The row, and an empty store."""
        row = self.row()
        self.clear()
        return row
