"""Tables of recorded runs: groups, pairs, thresholds, formats and the figure."""

import csv
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import burnish
from burnish.cli.app import build_app
from burnish.errors import BurnishError, ConfigError, DataError
from burnish.experiments.formats import Block, as_latex
from burnish.experiments.runs import short_name
from burnish.experiments.table import table

Recorded = Callable[..., Path]
RATE = "optimization.learning_rate"


@pytest.fixture
def two_by_three(recorded: Recorded) -> list[Path]:
    """Two algorithms with three seeds each. The seeds differ by .1, the algorithms by .02, .03 and .04 at the end."""
    curves = {
        "grpo": ({0: 0.1, 5: 0.5, 10: 0.7}, {0: 0.1, 5: 0.6, 10: 0.8}, {0: 0.1, 5: 0.7, 10: 0.9}),
        "rloo": ({0: 0.1, 5: 0.5, 10: 0.72}, {0: 0.1, 5: 0.4, 10: 0.83}, {0: 0.1, 5: 0.7, 10: 0.94}),
    }
    return [
        recorded(f"{name}-{seed}", curve, algorithm={"preset": name, "kl_in": "none"}, seed=seed)
        for name, group in curves.items()
        for seed, curve in enumerate(group)
    ]


def test_groups_are_found_and_compared_run_by_run(two_by_three: list[Path]) -> None:
    found = table(two_by_three)
    assert (found.metric, [group.label for group in found.groups]) == ("eval/accuracy", ["grpo", "rloo"])
    grpo, rloo = found.groups
    assert grpo.mean.mean == pytest.approx(0.8)
    assert grpo.mean.half_width == pytest.approx(4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    (difference,) = found.differences
    assert difference.group is rloo
    assert difference.paired.mean == pytest.approx(0.03)
    assert difference.paired.half_width == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    # Welch: variances .01 and .0121, so 3.964 degrees of freedom, t = 2.787, and sqrt(.0221 / 3) = .0858.
    assert difference.unpaired.half_width == pytest.approx(0.2392, abs=1e-4)
    assert difference.narrowing == pytest.approx(9.63, abs=0.01)


def test_what_a_group_is_follows_what_is_compared(recorded: Recorded) -> None:
    runs = [
        recorded(f"{rate}-{size}", {1: rate * 100 + size}, f"{RATE}={rate}", f"rollout.group_size={size}")
        for rate in (1e-3, 1e-2)
        for size in (4, 8)
    ]
    labels = [f"group_size={size}, learning_rate={rate}" for rate in (0.001, 0.01) for size in (4, 8)]
    assert [group.label for group in table(runs).groups] == labels
    by_rate = table(runs, by=RATE)
    assert [(group.label, len(group.runs)) for group in by_rate.groups] == [("0.001", 2), ("0.01", 2)]
    assert "differ in rollout.group_size" in by_rate.notes[0]
    assert by_rate.differences[0].paired.half_width == pytest.approx(0.0, abs=1e-9)  # 0.9 for either size
    with pytest.raises(DataError, match=r"do not differ in algorithm\n.*learning_rate"):
        table(runs, by="algorithm")
    with pytest.raises(DataError, match="algoritm is not a field"):
        table(runs, by="algoritm")


def test_what_differs_along_with_the_algorithm_is_said_and_does_not_hinder_pairs(recorded: Recorded) -> None:
    runs = [
        recorded(f"{name}-{seed}", {1: seed / 10}, f"optimization.learning_rate={rate}", algorithm=name, seed=seed)
        for name, rate in (("grpo", 1e-3), ("rloo", 1e-2))
        for seed in (0, 1)
    ]
    found = table(runs, by="algorithm")
    assert found.notes == ("these differ along with algorithm.preset: optimization.learning_rate",)
    assert found.differences[0].paired.count == 2
    assert [group.label for group in table(runs, by="algorithm.estimator").groups] == ["grpo", "rloo"]


def test_runs_of_different_seeds_are_no_pairs(recorded: Recorded) -> None:
    runs = [recorded(name, {1: 0.5}, algorithm=name, seed=seed) for seed, name in enumerate(("grpo", "rloo"))]
    (difference,) = table(runs).differences
    assert (difference.paired, difference.narrowing) == (None, None)
    assert "none" in str(table(runs))


def test_a_run_given_twice_is_refused(recorded: Recorded, two_by_three: list[Path]) -> None:
    copy = recorded("copy", {10: 0.5}, algorithm={"preset": "grpo", "kl_in": "none"}, seed=0)
    with pytest.raises(DataError, match="grpo-0 and copy do not differ in their settings"):
        table([*two_by_three, copy])
    with pytest.raises(DataError, match="the same run is given twice"):
        table([two_by_three[0], two_by_three[0]])


@pytest.mark.slow
def test_steps_and_tokens_to_a_threshold(two_by_three: list[Path]) -> None:
    """GRPO reaches .6 at 10, 5, 5; .8 is reached by two of its three runs."""
    reached, some = (table(two_by_three, threshold=value).groups[0].reached for value in (0.6, 0.8))
    assert (reached.steps.mean, reached.tokens.mean) == (pytest.approx(20 / 3), pytest.approx(2000 / 3))  # type: ignore[union-attr]
    assert (some.runs, some.of, some.steps, some.tokens) == (2, 3, None, None)  # type: ignore[union-attr]


def test_values_at_a_step_and_runs_without_the_metric(recorded: Recorded, two_by_three: list[Path]) -> None:
    assert table(two_by_three, step=0).groups[0].mean.mean == pytest.approx(0.1)
    late = recorded("late", {4: 0.5}, algorithm={"preset": "grpo", "kl_in": "none"}, seed=3, steps=10)
    assert "late is left out: it has not measured eval/accuracy at step 5" in table([*two_by_three, late], step=5).notes
    notes = table([*two_by_three, late]).notes
    assert notes[0] == "late is not finished"
    assert "different steps (--step compares one step)" in notes[1]
    with pytest.raises(DataError, match=r"no run has measured eval/acuracy\n.*did you mean 'eval/accuracy'"):
        table(two_by_three, "eval/acuracy")
    with pytest.raises(DataError, match=r"at step 7\n.*at steps 0, 5, 10"):
        table(two_by_three, step=7)


def test_a_folder_of_runs_stands_for_them_and_others_are_left_out(two_by_three: list[Path], tmp_path: Path) -> None:
    found = table([tmp_path / "runs", tmp_path / "absent"])
    assert [len(group.runs) for group in found.groups] == [3, 3]
    assert str(table(tmp_path / "runs")) == str(table([tmp_path / "runs"]))
    assert found.notes == (f"{tmp_path / 'absent'} is left out: it is not a run",)
    with pytest.raises(DataError, match=f"no folder of a run among {tmp_path}"):
        table([tmp_path / "absent"])
    with pytest.raises(ConfigError, match=r"cannot be written as 'markdwn'\n.*did you mean 'markdown'"):
        found.written("markdwn")
    with pytest.raises(ConfigError, match="threshold is nan"):
        table(two_by_three, threshold=math.nan)


def test_rows_are_plain_data_and_a_frame(two_by_three: list[Path]) -> None:
    found = burnish.table(two_by_three, baseline="rloo", threshold=0.6)
    first, second = found.rows
    assert (first["algorithm.preset"], first["runs"], first["reached"], first["difference"]) == ("rloo", 3, 3, None)
    assert (second["difference"], second["pairs"]) == (pytest.approx(-0.03), 3)
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.frame, pandas.DataFrame)
    with pytest.raises(DataError, match=r"called 'gpo'\n.*did you mean 'grpo'"):
        table(two_by_three, baseline="gpo")


TEXT = """\
eval/accuracy of 6 runs

algorithm  runs  mean  95 % interval  steps to >= 0.6  tokens
grpo          3  0.80   0.55 to 1.05            7 ± 7     667
rloo          3  0.83   0.56 to 1.10            8 ± 7     833

eval/accuracy compared with grpo, run by run. Runs that agree in all else share
prompts and noise; the last column says how many times as wide the interval
would be unpaired.

algorithm  pairs  difference     95 % interval  unpaired
rloo           3      +0.030  +0.005 to +0.055     9.6 x
"""


def test_the_formats(two_by_three: list[Path]) -> None:
    found = table(two_by_three, threshold=0.6)
    assert found.written("text") + "\n" == TEXT
    assert "| grpo | 3 | 0.80 | 0.55 to 1.05 | 7 ± 7 | 667 |" in found.written("markdown").splitlines()
    latex = found.written("latex")
    assert r"grpo & 3 & 0.80 & 0.55 to 1.05 & 7 $\pm$ 7 & 667 \\" in latex.splitlines()
    assert r"95 \% interval & steps to $\geq$ 0.6" in latex
    rows = list(csv.DictReader(io.StringIO(found.written("csv"))))
    assert [row["algorithm.preset"] for row in rows] == ["grpo", "rloo"]
    assert float(rows[1]["difference"]) == pytest.approx(0.03)
    assert r"a\_b\^{}2 & 5\% \\" in as_latex([Block("", (("name", "share"), ("a_b^2", "5%")))], []).splitlines()


def test_names_are_as_short_as_they_can_be() -> None:
    fields = ("optimization.learning_rate", "critic.learning_rate", "rollout.group_size", "algorithm.preset")
    found = [short_name(field, fields) for field in fields]
    assert found == ["optimization.learning_rate", "critic.learning_rate", "group_size", "algorithm"]


@pytest.mark.slow
def test_the_figure(two_by_three: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = table(two_by_three, threshold=0.6)
    drawn = found.figure(tmp_path / "out.svg").read_bytes()
    assert b"grpo (3)" in drawn
    assert found.figure(tmp_path / "again.svg").read_bytes() == drawn
    with pytest.raises(ConfigError, match=r"no known suffix\n.*\.svg"):
        found.figure(tmp_path / "out.gif")
    with pytest.raises(BurnishError, match="create the folder"):
        found.figure(tmp_path / "absent" / "out.svg")


def test_a_figure_without_matplotlib_says_what_to_install(
    two_by_three: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"not installed .*\n.*burnish\[figures\]"):
        table(two_by_three).figure(tmp_path / "out.svg")


def test_the_command(two_by_three: list[Path]) -> None:
    runs = [str(run) for run in two_by_three]
    done = CliRunner().invoke(build_app(), ["table", *runs, "--threshold", "0.6"])
    assert (done.exit_code, done.output) == (0, TEXT)
    with pytest.raises(ConfigError, match=r"--format is 'html'\n.*markdown"):
        CliRunner().invoke(build_app(), ["table", *runs, "--format", "html"], catch_exceptions=False)
