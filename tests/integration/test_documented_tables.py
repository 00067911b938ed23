"""The tables and lists of the pages have every row that the code has, and no other."""

import importlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from burnish.algorithms.advantages import ESTIMATOR_INPUTS, ESTIMATORS
from burnish.algorithms.policy_losses.table import POLICY_LOSSES
from burnish.checkpointing import fingerprints
from burnish.checkpointing.run import MAY_DIFFER
from burnish.config.presets import PRESETS
from burnish.config.schema_data import DataSource
from burnish.data.schemas import ROLES
from burnish.observability.alarms import DETECTORS
from burnish.rewards.inputs import ROW_VALUES
from burnish.rewards.registry import BUILT_INS

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows_of(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose head begins with this cell."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    assert rows, f"no table with the head {first}"
    return rows


def in_backticks(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def passage(name: str, beginning: str, start: str, end: str) -> str:
    """What stands between these words, in the paragraph of a page that holds the beginning."""
    (found,) = (part for part in page(name).split("\n\n") if beginning in part)
    return found.partition(start)[2].partition(end)[0]


def test_the_table_of_alarms_has_every_alarm() -> None:
    rows = rows_of(page("operations.md"), "alarm")
    assert {row[0] for row in rows} == {detector.name for detector in DETECTORS}
    metrics = {detector.name: detector.metric for detector in DETECTORS}
    for name, fires_when, _ in rows:
        for metric in in_backticks(fires_when):
            assert "/" not in metric or metric.partition("/")[0] == metrics[name].partition("/")[0], name


def test_the_table_of_built_in_rewards_is_the_code() -> None:
    rows = rows_of(page("rewards.md"), "name")
    assert {row[0].strip("`") for row in rows} == set(BUILT_INS)
    for name, _, options in rows:
        named = set(in_backticks(options))
        if name == "`judge`":  # its page has the table
            its_own = rows_of(page("judge.md"), "option")
            named = {word for row in its_own for word in in_backticks(row[0])}
            assert named == set(BUILT_INS["judge"].options)
        assert set(BUILT_INS[name.strip("`")].options) <= named, name


def test_the_layouts_and_roles_of_data_are_the_code() -> None:
    text = page("data.md")
    named = {word for row in rows_of(text, "layout (`schema_name`)") for word in in_backticks(row[0])}
    assert named == set(get_args(DataSource.model_fields["schema_name"].annotation)) - {"auto"}
    assert set(in_backticks(passage("data.md", "**`columns`** names", "Roles:", "Dots reach"))) == set(ROLES)


def test_the_fields_that_may_differ_at_a_resume_are_the_code() -> None:
    words = "These fields may differ"
    assert set(in_backticks(passage("operations.md", words, words, "`steps`"))) == set(MAY_DIFFER)


def test_the_packages_in_fingerprints_are_the_code() -> None:
    text = passage("operations.md", "A checkpoint also holds `fingerprints.json`", "the versions of", ". ")
    named = {word.strip().casefold() for word in re.split(r",| and ", " ".join(text.split()))}
    assert named == {"burnish", "python", *fingerprints.PACKAGES}


def test_what_an_estimator_may_ask_for_is_the_code() -> None:
    rows = rows_of(page("extending.md"), "parameter")
    assert {name for row in rows for name in in_backticks(row[0])} == set(ESTIMATOR_INPUTS)
    words = "Names that it may ask for:"
    assert set(in_backticks(passage("algorithms.md", words, words, "Asking for"))) == set(ESTIMATOR_INPUTS)


def test_what_a_reward_may_ask_for_is_the_code() -> None:
    rows = rows_of(page("rewards.md"), "parameter")
    named = {name for row in rows for name in in_backticks(row[0])} - {"**columns"}
    assert named == set(ROW_VALUES)
    plurals = {name for row in rows for name in in_backticks(row[2])}
    assert plurals == {plural for name, (plural, _) in ROW_VALUES.items() if plural != name}


def test_the_comparison_counts_the_values_of_our_example() -> None:
    def values(node: Any) -> int:
        return sum(map(values, node.values())) if isinstance(node, dict) else 1

    example = yaml.safe_load((DOCS.parent / "examples/gsm8k_grpo/run.yaml").read_text(encoding="utf-8"))
    (row,) = [line for line in page("comparison.md").splitlines() if "values set" in line]
    assert f"| {values(example)} in one YAML file" in row


@pytest.mark.slow
def test_the_table_of_step_ratios_is_made_from_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "benchmarks"))
    script = importlib.import_module("step_ratios")
    text = page("results.md")
    assert script.with_table(text, script.to_markdown(script.read_rows(DOCS.parent / script.RESULTS))) == text


def test_the_comparison_counts_our_algorithms() -> None:
    text = page("comparison.md")
    counts = (len(ESTIMATORS), len(POLICY_LOSSES), len(PRESETS))
    assert "{} estimators, {} policy losses, {} presets".format(*counts) in text
