"""Runs of the demo's and the calculator's files with other devices, number types and lengths."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from records import ROOT

import burnish
from burnish.config.yaml_text import parse_yaml
from burnish.demo import DemoFolder, write_data, write_model, write_run_files
from burnish.observability.history import read_rows

SEED = 1


def demo_folder(folder: Path, most_rows: int | None = None) -> DemoFolder:
    """Data, model and run files of the demo. most_rows: of each file of data, all if None."""
    demo = DemoFolder(folder / "demo")
    write_data(demo, SEED)
    cut_files(demo.train.parent, most_rows)
    write_model(demo.model, SEED)
    write_run_files(demo, SEED)
    return demo


def cut_files(folder: Path, most_rows: int | None) -> None:
    for path in folder.glob("*.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:most_rows]))


def read_file(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(path.read_text(encoding="utf-8")).data
    return found


def changed(file: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """The run file with other values; of a section only those that are given."""
    merged = dict(file)
    for name, value in sections.items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, Mapping) else value
    return merged


QUIET: dict[str, Any] = {"evaluation": {"every_steps": None, "at_start": False}, "checkpoint": {"every_steps": None}}


def demonstrated(demo: DemoFolder, steps: int) -> Path:
    """The run of so many steps of the demo's first half, on the CPU: without it no response is right."""
    file = shortened(changed(read_file(demo.sft_file), evaluation={"every_steps": None}), steps)
    return burnish.sft(file, quiet=True).output


def shortened(file: dict[str, Any], steps: int | None) -> dict[str, Any]:
    """The run file with so many steps (None: its own), no more than half of which warm up."""
    if steps is None:
        return file
    warmup = file["optimization"].get("warmup_steps", 0)
    return changed(file, steps=steps, optimization={"warmup_steps": min(warmup, steps // 2)})


def rl_rows(
    demo: DemoFolder, start: Path, output: Path, device: str, sizes: Mapping[str, Any]
) -> list[dict[str, float]]:
    """Metrics of the first steps of the demo's second half; `sizes` has dtype, steps, and the prompts of a step."""
    file = changed(
        read_file(demo.rl_file),
        output=str(output),
        model={"path": str(start), "device": device, "dtype": sizes["dtype"]},
        steps=sizes["steps"],
        rollout={"prompts_per_step": sizes["prompts"]},
        **QUIET,
    )
    burnish.train(file, quiet=True)
    return read_rows(output / "metrics.jsonl")


def calculator_folder(folder: Path, most_rows: int | None = None) -> Path:
    """What examples/calculator/prepare.py writes."""
    path = ROOT / "examples" / "calculator" / "prepare.py"
    spec = importlib.util.spec_from_file_location("calculator_prepare", path)
    assert spec is not None
    assert spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    with redirect_stdout(io.StringIO()):
        prepare.write_model(folder / "model")
        prepare.write_data(folder)
    cut_files(folder, most_rows)
    return folder
