"""`benchmarks/gpu`: every part runs, rows are kept and gone on with, and shares are what the arithmetic says."""

import json
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .conftest import BENCHMARKS, Script

STAMP = {"commit": "abc", "machine": "a GPU", "versions": "torch 2"}


def test_every_part_is_rehearsed(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "gpu"), "all", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    records = json.loads((tmp_path / "gpu.json").read_text())
    skipped = {record["part"] for record in records if "skipped" in record}
    assert skipped <= {"peers", "vllm"}, records  # TRL and vLLM may be missing
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"| {record['row']} |" in page for record in records if "figures" in record)
    assert "kernels run" in (tmp_path / "gpu_profiles.md").read_text()


def all_rows(script: Script) -> list[Any]:
    parts = script("parts")
    return [row for part in parts.PARTS for row in parts.rows_of(part, rehearses=False)]


def test_rows_are_told_apart_and_travel_as_plain_data(script: Script) -> None:
    rows = all_rows(script)
    assert len({(row.part, row.name) for row in rows}) == len(rows)
    assert json.dumps([row.settings for row in rows])
    assert max(row.seconds for row in rows) <= 300


def test_run_files_of_all_rows_are_valid(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At full size, which no rehearsal has; and 80 GB are enough wherever a target stands beside the row."""
    from burnish.config.loading import load_run_data
    from burnish.planning.memory import estimate_memory, peak_bytes

    steps, shapes = script("parts.steps"), script("shapes")
    monkeypatch.setattr(steps, "write_shape", lambda shape, folder: folder)
    monkeypatch.setattr(steps, "write_prompts", lambda file, *_: file)
    place = script("rows").Place(script("device").Device(), tmp_path)
    for row in all_rows(script):
        if row.part in ("memory", "vllm", "several"):
            data = script(f"parts.{row.part}").run_file(row.settings, place)
        elif row.settings.get("kind") in ("whole", "first"):
            data = steps.run_data(row.settings, place, steps=3)
        else:
            continue
        config = load_run_data(data).config
        planned = estimate_memory(config, shapes.facts(shapes.SHAPES[row.settings["shape"]]), on_gpu=True)
        assert peak_bytes(planned) < 80e9 or not row.targets, row.name


def test_a_row_has_figures_a_reason_or_an_error(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    device = types.SimpleNamespace(forget_peak=lambda: None)

    def found(measure: Callable[[int], Any]) -> Any:
        part = types.SimpleNamespace(measure=lambda settings, place: measure(settings["x"]))
        monkeypatch.setitem(sys.modules, "parts.fake", part)
        return script("worker").measure(script("rows").Row("fake", "a row", {"x": 3}), device)

    def fail(error: Exception) -> None:
        raise error

    assert found(lambda x: {"y": x + 1}) == {"figures": {"y": 4}}
    assert found(lambda x: fail(script("rows").Skipped("no vLLM"))) == {"skipped": "no vLLM"}
    assert found(lambda x: fail(MemoryError("CUDA out of")))["error"].startswith(
        "MemoryError: CUDA out of (test_gpu.py:"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("starting", "error"), [(0.0, "still running after 1 s"), (60.0, "ended with status -9")])
def test_a_worker_that_hangs_or_dies_is_replaced(script: Script, starting: float, error: str, monkeypatch: Any) -> None:
    module, Row = script("worker"), script("rows").Row
    monkeypatch.setattr(module, "STARTING_SECONDS", starting)
    deadly = Row("tests", "x", {"kind": "program", "words": ["-c", "import os; os.kill(os.getppid(), 9)"]})
    worker = module.Worker(rehearses=True)
    try:
        assert worker.measure(deadly, 1.0)["error"].endswith(error)
        said = worker.measure(Row("tests", "y", {"kind": "program", "words": ["-c", "print(7)"]}), 60.0)
        assert said == {"figures": {"said": "7 "}}
    finally:
        worker.end()


def test_a_part_goes_on_where_it_ended(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "0")  # the command sets them: what was there comes back
    command = ModuleType("gpu_command")
    command.__file__ = str(BENCHMARKS / "gpu" / "__main__.py")
    SourceFileLoader("gpu_command", command.__file__).exec_module(command)
    Row, Records, forever = script("rows").Row, script("records").Records, float("inf")
    known = {"a": {"error": "no memory"}, "b": {"figures": {"steps": 2}}, "c": {"skipped": "no vLLM"}, "long": {}}
    rows = [Row("steps", name, seconds=500 if name == "long" else 10) for name in known]
    monkeypatch.setattr(command, "rows_of", lambda part, rehearses: rows)
    asked: list[str] = []
    worker = types.SimpleNamespace(measure=lambda row, seconds: asked.append(row.name) or known[row.name])
    records = Records(tmp_path / "gpu.json", STAMP)
    assert command.measure_part("steps", records, worker, 0.0, rehearses=False)
    assert not command.measure_part("steps", records, worker, forever, rehearses=False)
    assert asked == ["a", "b", "c"]  # the last one's deadline is after the part's
    again = Records(tmp_path / "elsewhere" / "gpu.json", STAMP, earlier=tmp_path / "gpu.json")
    assert command.measure_part("steps", again, worker, forever, rehearses=False)
    assert asked == ["a", "b", "c", "c"]
    for other in ("commit", "machine"):
        assert not Records(tmp_path / "gpu.json", STAMP | {other: "another"}).has(rows[0])


def test_operations_are_counted_by_hand(script: Script) -> None:
    shapes, batches = script("shapes"), script("random_batches")
    # One layer: q and o 4 x 4, k and v 4 x 2, three of 4 x 5 in the feed-forward: 32 + 16 + 60 = 108; a head of 4 x 7.
    sizes = shapes.facts(shapes.qwen("llama", 4, 1, 2, 1, 5, vocabulary=7))
    assert shapes.pass_flops(sizes, tokens=10, scored=3, pairs=0) == 2 * (10 * 108 + 3 * 28)
    assert shapes.pass_flops(sizes, tokens=0, scored=0, pairs=5) == 5 * 4 * 4
    assert shapes.key_bytes(sizes) == 2 * 2 * 2
    # A prompt of 3 sees 1 + 2 + 3; each of two responses of 2 sees the prompt twice, and 1 + 2 of itself.
    lengths = {"prompts": 1, "group": 2, "prompt": 3, "response": 2}
    assert batches.causal_pairs(**lengths, shared=True) == 6 + 2 * (6 + 3)
    assert batches.causal_pairs(**lengths, shared=False) == 2 * (6 + 6 + 3)


def test_a_target_stands_beside_its_figure(script: Script) -> None:
    target = script("rows").Target("peak_share", at_least=0.35, published="others: 9 %")
    figures = {"fast": {"peak_share": 0.4, "peak_bytes": 3 << 30}, "slow": {"peak_share": 0.1, "peak_bytes": 3 << 29}}
    records = [{"part": "steps", "row": name, "figures": found, **STAMP} for name, found in figures.items()]
    records.append({"part": "steps", "row": "large", "error": "OutOfMemoryError", **STAMP})
    known = {
        ("steps", name): script("rows").Row("steps", name, targets=(target,)) for name in ("fast", "slow", "large")
    }
    text = script("page").results_page(records, known, rehearses=False)
    assert "| fast | 40.0 % | 3.00 GiB | peak share >= 35.0 %: reached (others: 9 %) |" in text
    assert "| slow | 10.0 % | 1.50 GiB | peak share >= 35.0 %: **missed** (others: 9 %) |" in text
    assert "- large: error: OutOfMemoryError" in text


def test_the_fastest_settings_and_the_largest_costs_are_named(script: Script) -> None:
    trials = [("TRL, 8 rows", 50.0, 9.0), ("TRL, 16 rows", 100.0, 10.0), ("Burnish, 8,192 tokens", 250.0, 8.0)]
    found = [
        {"row": f"0.5b, {name}", "figures": {"tokens_per_second": speed, "peak_bytes": peak}}
        for name, speed, peak in trials
    ]
    (line,) = script("parts.peers").summary(found)
    assert "2.50x" in line
    assert "0.80 of its memory (target 0.7: missed)" in line
    profile = {"seconds": 2.0, "busy_share": 0.75, "kernels": [["gemm", 1.0, 3], ["softmax", 0.2, 1]]}
    costs = script("profiling").three_largest(profile)
    assert costs == "50 % gemm; 25 % no kernel (the host is behind); 10 % softmax"
