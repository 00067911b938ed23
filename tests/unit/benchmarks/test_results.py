"""Measured results are kept one record a line, and the pages are what the scripts make of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import BENCHMARKS, Script

RESULTS = BENCHMARKS / "results"


def measured(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_a_record_takes_a_line(script: Script, tmp_path: Path) -> None:
    rows = [{"name": "a", "seconds": [0.1] * 40}, {"name": "b", "seconds": []}]
    data = {"about": {"threads": 2}, "rows": rows, "empty": [], "long": {"x": "x" * 100, "y": [1, 2]}}
    script("lines").write_json(tmp_path / "data.json", data)
    text = (tmp_path / "data.json").read_text(encoding="utf-8")
    assert json.loads(text) == data
    assert text.splitlines() == [
        "{",
        ' "about": {"threads": 2},',
        ' "rows": [',
        f"  {json.dumps(rows[0])},",
        '  {"name": "b", "seconds": []}',
        " ],",
        ' "empty": [],',
        ' "long": {',
        f'  "x": "{"x" * 100}",',
        '  "y": [1, 2]',
        " }",
        "}",
    ]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_the_results_are_written_so(script: Script, path: Path, tmp_path: Path) -> None:
    script("lines").write_json(tmp_path / "again.json", measured(path.name))
    assert (tmp_path / "again.json").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("peers", "report"),
        ("peers_avx2", "report"),
        ("peers_xeon", "report"),
        ("peers_xeon_avx2", "report"),
        ("shares", "step_shares"),
        ("shares_avx2", "step_shares"),
        ("shares_xeon", "step_shares"),
        ("simulator", "simulator"),
        ("faults", "faults"),
        ("sandbox", "sandbox"),
        ("conversation", "conversation"),
        ("adapters", "adapters"),
        ("products", "products"),
        ("products_xeon", "products"),
        ("heap", "heap"),
    ],
)
def test_a_page_is_made_from_its_results(script: Script, page: str, module: str) -> None:
    text = (RESULTS / f"{page}.md").read_text(encoding="utf-8")
    assert script(module).to_markdown(measured(f"{page}.json")) == text


@pytest.mark.slow
def test_the_page_of_scaling_is_made_from_its_results(script: Script) -> None:
    report = measured("scaling.json")
    axes = [axis for axis in script("scaling_axes").AXES if axis.name in report["axes"]]
    findings = [
        finding for axis in axes for finding in script("scaling_axes").examine(axis, report["axes"][axis.name], "cpu")
    ]
    text = script("scaling_page").to_markdown(report, axes, findings, "cpu", "scaling.png")
    assert text == (RESULTS / "scaling.md").read_text(encoding="utf-8")
