"""`benchmarks/peers`, `benchmarks/step_shares.py` and `benchmarks/heap.py` run from end to end in their quick form.
What they write has the right shape, whatever the times are."""

import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import BENCHMARKS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def quick(tmp_path: Path, program: str, *words: str) -> dict[str, Any]:
    """What the program writes."""
    output = tmp_path / "found"
    command = [sys.executable, str(BENCHMARKS / program), "--quick", "--output", str(output), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr[-3000:]
    assert output.with_suffix(".md").read_text(encoding="utf-8") in done.stdout
    return json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))


def of(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


@pytest.mark.matrix
def test_the_peers_without_any_other_go_on_where_they_were_cut_short(tmp_path: Path) -> None:
    """One workload of each kind: geometric lengths after prompts of a file, both precisions, PPO, conversations."""
    first = quick(tmp_path, "peers", "--workloads", "W6")
    report = quick(tmp_path, "peers", "--workloads", "W1", "W6", "W7", "W8", "--add")
    rows = report["rows"]
    burnish = [row for row in rows if row["peer"] == "Burnish"]
    cells = [("W1", "float32"), ("W1", "bfloat16"), ("W6", "float32"), ("W7", "float32"), ("W8", "float32")]
    assert of(burnish, "workload", "precision") == cells
    assert of([row for row in rows if row["peer"] == "Burnish (naive)"], "workload") == [("W7",)]
    assert {row["workload"] for row in rows if row["peer"] == "transformers.generate"} == {"W1", "W6"}
    assert len({(row["commit"], row["machine"], row["threads"]) for row in rows}) == 1
    for row in rows:
        assert len(row["all_step_seconds"]) == 3
        assert row["peak_bytes"] > row["workers_bytes"]
        assert row["responses"] == 3 * 8
        assert row["ratio"] > 0
    assert all(row["workers_bytes"] > 0 for row in burnish)
    assert "TRL is left out" in report["runs"][0]["left_out"][0]
    kept = [row for row in rows if row["workload"] == "W6"]
    for before, after in zip(first["rows"], kept, strict=True):
        assert after["over_floor"] >= before.pop("over_floor")  # by the best rate of both runs, no longer of one
        assert after.items() >= before.items()
    assert len(report["runs"]) == 2


@pytest.mark.matrix  # run by hand (make test-matrix)
def test_every_workload_without_any_other(tmp_path: Path) -> None:
    rows = quick(tmp_path, "peers", "--precisions", "float32")["rows"]
    burnish = [row for row in rows if row["peer"] == "Burnish"]
    assert of(burnish, "workload") == [(f"W{n}",) for n in range(1, 11)]
    sampled = {row["workload"] for row in rows if row["peer"] == "transformers.generate"}
    assert sampled == {"W1", "W2", "W3", "W5", "W6", "W10"}


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
def test_trl_is_searched_and_measured_in_every_way(tmp_path: Path) -> None:
    words = ["--trl-python", sys.executable, "--workloads", "W1", "W2", "W8", "--precisions", "float32"]
    report = quick(tmp_path, "peers", *words)
    ways = {"TRL", "TRL, head on responses only", "TRL, low memory", "TRL, as written"}
    for workload in ("W1", "W8"):
        found = {row["peer"] for row in report["rows"] if row["workload"] == workload}
        assert ways <= found
        tried = [trial for trial in report["tried"] if trial["workload"] == workload]
        assert len(tried) >= 4
        assert any(trial["tokens_per_second"] for trial in tried)
        assert not any(trial["failed"] for trial in tried)
    for row in report["rows"]:
        if row["peer"] == "TRL" and row["allocator"] != "as it comes":
            assert row["memory_ratio"] > 0


@pytest.mark.matrix
def test_the_shares_of_a_step(tmp_path: Path) -> None:
    workloads = ("W1", "W2", "W3", "W7")
    report = quick(tmp_path, "step_shares.py", "--switch-off", "avx512", "--workloads", *workloads)
    cells = [("W1", "float32"), ("W1", "bfloat16"), ("W2", "float32"), ("W3", "float32"), ("W7", "float32")]
    assert of(report["tables"], "workload", "precision") == cells
    assert report["switched_off"] == ["avx512"]
    for table in report["tables"]:
        assert table["step"] > table["floor"] > 0
        phases = table["phases"]
        assert set(phases) == {"generate", "update"} | ({"logprobs", "values"} if table["workload"] == "W7" else set())
        assert all(seconds["all"] > 0 for seconds in phases.values())
        assert phases["generate"]["products"] > 0
        assert phases["generate"]["reading"] > 0


@pytest.mark.matrix
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc says what it holds")
def test_the_memory_of_a_step(tmp_path: Path) -> None:
    settings = ("as it comes", "no small blocks kept")
    rows = quick(tmp_path, "heap.py", "--settings", *settings)["rows"]
    assert of(rows, "workload", "setting") == [("W1", setting) for setting in settings]
    for row in rows:
        assert len(row["seconds"]) == 1
        assert row["peak_bytes"][0] - row["workers_bytes"][0] > row["held_bytes"][0] >= row["used_bytes"][0] > 0
        assert row["workers_bytes"][0] > 0
