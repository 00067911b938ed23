"""What a case costs is measured with its processes, and limits are held."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timekeeping

BUSY = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}: pass\n"
CASES = f"""
import subprocess, sys, time
import pytest

def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds: pass

@pytest.fixture(scope="module")
def shared():
    burn(.2)

def test_itself(shared): burn(.1)
def test_child(): subprocess.run([sys.executable, "-c", {BUSY.format(0.15)!r}])
def test_waiting(): time.sleep(.3)
"""


@pytest.fixture
def costs(tmp_path: Path) -> dict[str, dict[str, float]]:
    """What three cases and the fixture of one cost."""
    (tmp_path / "test_cases.py").write_text(CASES)
    options = ["-p", "timekeeping", "-p", "no:cacheprovider", "--record", "costs.jsonl", "test_cases.py"]
    variables = os.environ | {"PYTHONPATH": str(Path(timekeeping.__file__).parent)}
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), *options]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "costs.jsonl").read_text().splitlines()]
    return {row["name"].removeprefix("test_cases.py"): row for row in rows}


@pytest.mark.slow
def test_seconds_are_of_the_case_and_its_processes(costs: dict[str, dict[str, float]]) -> None:
    """Only lower bounds, and what belongs to another row: a busy machine may add to each."""
    assert set(costs) == {"::test_itself", "[fixture shared]", "::test_child", "::test_waiting"}
    assert 0.1 <= costs["::test_itself"]["cpu"] < costs["[fixture shared]"]["cpu"] + 0.1
    assert costs["[fixture shared]"]["cpu"] >= 0.2
    assert costs["::test_child"]["cpu"] >= 0.15
    assert costs["::test_waiting"]["waited"] >= 0.25
    assert costs["::test_itself"]["waited"] < costs["::test_waiting"]["waited"]


def row(name: str, cpu: float) -> dict[str, object]:
    return {"name": name, "cpu": cpu, "seconds": cpu, "waited": 0.0}


def test_cases_above_the_limit_are_named_unless_they_are_guards() -> None:
    rows = [row("a.py::quick", 0.9), row("a.py::heavy", 2.5), row("a.py::guard", 9.0)]
    [line] = timekeeping.find_excesses(rows, {"a.py::guard"})
    assert line.startswith("a.py::heavy takes 2.5 CPU seconds")


def test_the_whole_has_a_limit() -> None:
    rows = [row(f"a.py::case{n}", 1.5) for n in range(241)]
    [line] = timekeeping.find_excesses(rows, set())
    assert line.startswith("all default cases take 362 CPU seconds")


def test_guards_are_few_and_say_their_promise() -> None:
    lines = [line for line in timekeeping.GUARDS.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]
    assert len(lines) <= 40
    assert all(line.count("  # ") == 1 for line in lines)
    assert len(timekeeping.read_guards()) == len(lines)
