"""`benchmarks/gpu`: every part runs, rows are kept and gone on with, and shares are what the arithmetic says."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    for folder in ("peers", "gpu"):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    return importlib.import_module


def test_every_part_is_rehearsed(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCHMARKS / "gpu"), "all", "--rehearse", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    records = json.loads((tmp_path / "gpu.json").read_text())
    assert {record["part"] for record in records if "figures" in record} >= {
        *("tests", "exact", "steps", "decode", "memory", "peers", "learn", "several")
    }
    assert not [record for record in records if "error" in record]
    page = (tmp_path / "gpu.md").read_text()
    assert all(f"| {record['row']} |" in page for record in records if "figures" in record)
    assert "kernels run" in (tmp_path / "gpu_profiles.md").read_text()


# Rows


def all_rows(script: Script) -> list[Any]:
    parts = script("parts")
    return [row for part in parts.PARTS for row in parts.rows_of(part, rehearses=False)]


def test_rows_are_told_apart_and_travel_as_plain_data(script: Script) -> None:
    rows = all_rows(script)
    assert len({(row.part, row.name) for row in rows}) == len(rows)
    for row in rows:
        json.dumps(row.settings)
        assert row.seconds <= 300


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
            config = load_run_data(script(f"parts.{row.part}").run_file(row.settings, place)).rl
        elif row.settings.get("kind") in ("whole", "first"):
            config = load_run_data(steps.run_data(row.settings, place, steps=3)).rl
        else:
            continue
        if row.targets:
            planned = estimate_memory(config, shapes.facts(shapes.SHAPES[row.settings["shape"]]), on_gpu=True)
            assert peak_bytes(planned) < 80e9, row.name


# The worker and its records


class Device:
    def forget_peak(self) -> None:
        pass


@pytest.fixture
def fake_part(script: Script, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], Any]:
    def make(measure: Callable[..., Any]) -> Any:
        module = types.ModuleType("parts.fake")
        module.measure = measure  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "parts.fake", module)
        return script("rows").Row("fake", "a row", {"x": 3})

    return make


def test_a_row_has_figures_a_reason_or_an_error(script: Script, fake_part: Any) -> None:
    measure, skipped = script("worker").measure, script("rows").Skipped
    assert measure(fake_part(lambda settings, place: {"y": settings["x"] + 1}), Device()) == {"figures": {"y": 4}}

    def skip(settings: Any, place: Any) -> None:
        raise skipped("no such machine")

    assert measure(fake_part(skip), Device()) == {"skipped": "no such machine"}

    def fail(settings: Any, place: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert measure(fake_part(fail), Device())["error"].startswith("OutOfMemoryError: CUDA out of memory (test_gpu.py:")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 60.0], ids=["a deadline", "a lost process"])
def test_a_worker_that_hangs_or_dies_is_replaced(script: Script, seconds: float, monkeypatch: Any) -> None:
    worker_module = script("worker")
    monkeypatch.setattr(worker_module, "STARTING_SECONDS", 0.0 if seconds < 1 else 60.0)
    row = script("rows").Row("tests", "x", {"kind": "program", "words": ["-c", "import os; os.kill(os.getppid(), 9)"]})
    worker = worker_module.Worker(rehearses=True)
    try:
        error = worker.measure(row, seconds)["error"]
        assert error == ("still running after 0 s" if seconds < 1 else "its process ended with status -9")
        again = script("rows").Row("tests", "y", {"kind": "program", "words": ["-c", "print(7)"]})
        monkeypatch.setattr(worker_module, "STARTING_SECONDS", 60.0)
        assert worker.measure(again, 60.0) == {"figures": {"said": "7 "}}
    finally:
        worker.end()


def test_rows_are_gone_on_with(script: Script, tmp_path: Path) -> None:
    Records, Row = script("records").Records, script("rows").Row
    stamp = {"commit": "abc", "machine": "one", "versions": "torch 2"}
    measured, skipped, missing = Row("steps", "a"), Row("steps", "b"), Row("steps", "c")
    records = Records(tmp_path / "gpu.json", stamp)
    records.add(measured, {"figures": {"tokens_per_second": 1.0}}, 2.0)
    records.add(skipped, {"skipped": "no vLLM"}, 0.1)
    again = Records(tmp_path / "elsewhere" / "gpu.json", stamp, earlier=tmp_path / "gpu.json")
    assert [again.has(row) for row in (measured, skipped, missing)] == [True, False, False]
    again.add(skipped, {"error": "no memory"}, 0.1)
    assert [record["row"] for record in again.rows] == ["a", "b"]
    assert again.has(skipped)
    for other in ("commit", "machine"):
        assert not Records(tmp_path / "gpu.json", stamp | {other: "another"}).has(measured)


# The arithmetic


def test_operations_are_counted_by_hand(script: Script) -> None:
    shapes, batches = script("shapes"), script("batches")
    # One layer: q and o 4 x 4, k and v 4 x 2, three of 4 x 5 in the feed-forward: 32 + 16 + 60 = 108; a head of 4 x 7.
    sizes = shapes.facts(shapes.qwen("llama", 4, 1, 2, 1, 5, vocabulary=7))
    assert shapes.trunk_weights(sizes) == 108
    assert shapes.pass_flops(sizes, tokens=10, scored=3, pairs=0) == 2 * (1080 + 3 * 28)
    assert shapes.pass_flops(sizes, tokens=0, scored=0, pairs=5) == 5 * 4 * 4
    assert shapes.key_bytes(sizes) == 2 * 2 * 2
    # A prompt of 3 sees 1 + 2 + 3; each of two responses of 2 sees the prompt twice, and 1 + 2 of itself.
    lengths = {"prompts": 1, "group": 2, "prompt": 3, "response": 2}
    assert batches.causal_pairs(**lengths, shared=True) == 6 + 2 * (6 + 3)
    assert batches.causal_pairs(**lengths, shared=False) == 2 * (6 + 6 + 3)


def test_a_batch_has_the_tokens_that_are_counted(script: Script) -> None:
    batches, works = script("batches"), script("parts.steps").WORKS
    for work in (works["toy"], works["toy, not shared"], works["toy sft"]):
        batch = batches.random_batch(64, **work.sizes())
        distinct = len({tuple(row) for row in batch.prompt_tokens.tolist()})
        assert distinct * work.prompt + int(batch.response_lengths.sum()) == work.tokens


def test_a_target_stands_beside_its_figure(script: Script) -> None:
    rows, page = script("rows"), script("page")
    target = rows.Target("peak_share", at_least=0.35, published="others: 9 %")
    stamp = {"commit": "abc", "machine": "a GPU", "versions": "torch 2", "seconds": 1.0}
    records = [
        {"part": "steps", "row": "fast", "figures": {"peak_share": 0.4, "allocated_bytes": 3 << 30}, **stamp},
        {"part": "steps", "row": "slow", "figures": {"peak_share": 0.1, "allocated_bytes": 3 << 29}, **stamp},
        {"part": "steps", "row": "large", "error": "OutOfMemoryError", **stamp},
    ]
    known = {("steps", name): rows.Row("steps", name, {}, 60, (target,)) for name in ("fast", "slow", "large")}
    text = page.results_page(records, known, rehearses=False)
    assert "| fast | 40.0 % | 3.00 GiB | peak share >= 35.0 %: reached (others: 9 %) |" in text
    assert "| slow | 10.0 % | 1.50 GiB | peak share >= 35.0 %: **missed** (others: 9 %) |" in text
    assert "- large: error: OutOfMemoryError" in text


def test_the_fastest_settings_are_compared(script: Script) -> None:
    def record(peer: str, setting: str, tokens: float, memory: float) -> dict[str, Any]:
        return {"row": f"0.5b, {peer}, {setting}", "figures": {"tokens_per_second": tokens, "peak_bytes": memory}}

    found = [
        record("TRL", "8 rows", 50.0, 9.0),
        record("TRL", "16 rows", 100.0, 10.0),
        record("Burnish", "x", 250.0, 8.0),
    ]
    (line,) = script("parts.peers").summary(found)
    assert "2.50x" in line
    assert "0.80 of its memory (target 0.7: missed)" in line


def test_profiles_name_the_largest_costs(script: Script) -> None:
    found = {"seconds": 2.0, "busy_share": 0.75, "kernels": [["gemm", 1.0, 3], ["softmax", 0.2, 1]]}
    said = script("profiling").three_largest(found)
    assert said == "50 % gemm; 25 % no kernel (the host is behind); 10 % softmax"


# The command


@pytest.fixture
def command(script: Script, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, "0"))  # the command sets them: what was there comes back
    spec = importlib.util.spec_from_file_location("gpu_command", BENCHMARKS / "gpu" / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeWorker:
    def __init__(self, **found: Any) -> None:
        self.found, self.asked = found, []

    def measure(self, row: Any, seconds: float) -> Any:
        self.asked.append((row.name, seconds))
        return self.found[row.name]


def test_a_part_goes_on_after_a_failure_and_ends_in_time(
    command: ModuleType, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Row = script("rows").Row
    rows = [Row("steps", "a", seconds=10), Row("steps", "b", seconds=20), Row("steps", "long", seconds=500)]
    monkeypatch.setattr(command, "rows_of", lambda part, rehearses: rows)
    worker = FakeWorker(a={"error": "no memory"}, b={"figures": {"tokens_per_second": 2.0}})
    records = script("records").Records(tmp_path / "gpu.json", {"commit": "c", "machine": "m", "versions": "v"})
    assert not command.measure_part("steps", records, worker, float("inf"), rehearses=False)
    assert worker.asked == [("a", 10), ("b", 20)]  # the third one's deadline is after the part's
    assert [set(record) & {"error", "figures"} for record in records.rows] == [{"error"}, {"figures"}]
    assert command.measure_part("steps", records, worker, 0.0, rehearses=False)
    assert len(worker.asked) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_only_a_rehearsal_begins(command: ModuleType, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "tests"])
    with pytest.raises(SystemExit):
        command.parse()
    assert "PyTorch sees no CUDA device: --rehearse" in capsys.readouterr().err
