"""The table of a run's metrics, with pandas and without."""

from __future__ import annotations

import math
import sys

import pytest

from burnish.api.metrics import MetricsTable, metrics_table, shown

ROWS = [{"step": 0, "eval/accuracy": 0.5}, {"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.75}]


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = metrics_table(ROWS)
    assert isinstance(table, MetricsTable)
    assert table.steps == [0, 1, 2]
    assert table["reward/mean"][1:] == [0.25, 0.75]
    assert math.isnan(table["reward/mean"][0])
    assert list(table) == ["eval/accuracy", "reward/mean"]
    with pytest.raises(KeyError):
        table["reward/std"]
    assert repr(table) == shown(ROWS)


def test_with_pandas() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    table = metrics_table(ROWS)
    assert list(table.index) == [0, 1, 2]
    assert list(table["reward/mean"])[1:] == [0.25, 0.75]
    assert len(metrics_table([])) == 0


def test_what_is_shown_has_the_columns_of_the_display() -> None:
    assert shown(ROWS).split() == ["step", "reward", "accuracy", "0", "50.0%", "1", "0.250", "2", "0.750"]
