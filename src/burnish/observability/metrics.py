"""Metrics with typed reductions, and the time of a step by phase.

Readings of one name merge by their own rule, so no mean of means is ever taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import SupportsFloat

import torch
from torch import Tensor

from burnish.types import Metric, Reduction


def mean(total: SupportsFloat, count: SupportsFloat) -> Metric:
    """A mean given by its sum and its number of values (floats or 0-d tensors)."""
    return Metric(Reduction.MEAN, total, count)


def mean_of(values: Iterable[float]) -> Metric:
    """The mean of host-side numbers. Nothing is logged if there are none."""
    listed = list(values)
    return Metric(Reduction.MEAN, float(sum(listed)), float(len(listed)))


def total(value: SupportsFloat) -> Metric:
    """A quantity that adds up over readings (tokens, seconds, failures)."""
    return Metric(Reduction.SUM, value)


class MetricStore:
    """Collects the readings of one step; tensors stay tensors, on their device, until `row` is asked for."""

    def __init__(self) -> None:
        self._readings: dict[str, list[Metric]] = {}

    @staticmethod
    def of(parts: Iterable[Mapping[str, Metric]]) -> MetricStore:
        """A store with the readings of all parts, in their order."""
        store = MetricStore()
        for metrics in parts:
            store.merge(metrics)
        return store

    def add(self, name: str, metric: Metric) -> None:
        """Add one reading. Raises ValueError when the name was used with another reduction."""
        readings = self._readings.setdefault(name, [])
        if readings and readings[0].reduction is not metric.reduction:
            raise ValueError(f"metric {name} was {readings[0].reduction} and now comes as {metric.reduction}")
        readings.append(metric)

    def merge(self, metrics: Mapping[str, Metric]) -> None:
        """Add the readings of several metrics."""
        for name, metric in metrics.items():
            self.add(name, metric)

    def merged(self) -> dict[str, Metric]:
        """One metric per name, not yet added up, to be passed to another store as one reading."""
        return {
            name: Metric(first.reduction, first.value, first.weight, (*first.later, *rest))
            for name, (first, *rest) in self._readings.items()
        }

    def row(self) -> dict[str, float]:
        """Names, sorted, to numbers; a metric that measured nothing is left out."""
        results = ((name, metric.result()) for name, metric in sorted(on_host(self.merged()).items()))
        return {name: value for name, value in results if value is not None}


def on_host(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Copy the metrics' tensors to host memory, all of one device and dtype at once: fetching hundreds of numbers from
    a GPU one by one would wait for it hundreds of times."""
    away: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
    for metric in metrics.values():
        for scalar in _scalars(metric):
            if isinstance(scalar, Tensor) and scalar.device.type != "cpu":
                away.setdefault((scalar.device, scalar.dtype), {})[id(scalar)] = scalar
    fetched: dict[int, Tensor] = {}
    for tensors in away.values():
        together = torch.stack([tensor.detach().reshape(()) for tensor in tensors.values()])
        fetched |= zip(tensors, together.cpu().unbind(), strict=True)
    return {name: _with(fetched, metric) for name, metric in metrics.items()} if fetched else dict(metrics)


def _scalars(metric: Metric) -> Iterator[SupportsFloat]:
    yield metric.value
    yield metric.weight
    for reading in metric.later:
        yield from _scalars(reading)


def _with(fetched: Mapping[int, Tensor], metric: Metric) -> Metric:
    """Replace a metric's tensors by the fetched ones. They keep their dtype, and so the same arithmetic."""
    value, weight = (fetched.get(id(scalar), scalar) for scalar in (metric.value, metric.weight))
    return Metric(metric.reduction, value, weight, tuple(_with(fetched, reading) for reading in metric.later))


class Stopwatch:
    """Wall-clock seconds per phase of one step; `announce` gets the name of each phase as it begins, "" after it."""

    def __init__(self, announce: Callable[[str], None] = lambda name: None) -> None:
        self._seconds: dict[str, float] = {}
        self._announce = announce
        self._started = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._announce(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
            self._announce("")

    def seconds(self, name: str) -> float:
        return self._seconds.get(name, 0.0)

    def phases(self) -> dict[str, Metric]:
        """Return the seconds of each phase."""
        return {f"time/{name}_seconds": Metric(Reduction.SUM, value) for name, value in self._seconds.items()}

    def metrics(self) -> dict[str, Metric]:
        """Return the seconds of each phase, and since the stopwatch was made."""
        return self.phases() | {"time/step_seconds": Metric(Reduction.SUM, time.perf_counter() - self._started)}
