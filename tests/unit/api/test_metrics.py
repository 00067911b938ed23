"""The table of a run's metrics."""

from burnish.api.run import metrics_table, shown

ROWS = [{"step": 0, "eval/accuracy": 0.5}, {"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.75}]


def test_a_table_has_a_row_for_each_step() -> None:
    table = metrics_table(ROWS)
    assert list(table.index) == [0, 1, 2]
    assert list(table["reward/mean"])[1:] == [0.25, 0.75]
    assert len(metrics_table([])) == 0


def test_what_is_shown_has_the_columns_of_the_display() -> None:
    assert shown(ROWS).split() == ["step", "reward", "accuracy", "0", "50.0%", "1", "0.250", "2", "0.750"]
